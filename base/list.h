/* An intrusive FIFO list: the object carries the link, nothing is allocated. Owner's thread only.
 */
#ifndef PD_BASE_LIST_H
#define PD_BASE_LIST_H

#include "base/check.h"

#include <stdbool.h>

struct pd_link {
    struct pd_link *next, *prev;
};

static inline void pd_list_init(struct pd_link *list)
{
    list->next = list->prev = list;
}

static inline bool pd_list_empty(const struct pd_link *list)
{
    return list->next == list;
}

static inline void pd_list_push(struct pd_link *list, struct pd_link *link)
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

static inline void pd_list_remove(struct pd_link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->next = link->prev = link;
}

/* The oldest link, removed, or NULL. */
static inline struct pd_link *pd_list_pop(struct pd_link *list)
{
    if (pd_list_empty(list))
        return NULL;
    struct pd_link *link = list->next;
    pd_list_remove(link);
    return link;
}

#define PD_LIST_EACH(at, list) for (struct pd_link *at = (list)->next; at != (list); at = at->next)

#endif
