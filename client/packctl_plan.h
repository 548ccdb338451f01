/* packctl plan: what its two files share. */
#ifndef PD_CLIENT_PACKCTL_PLAN_H
#define PD_CLIENT_PACKCTL_PLAN_H

#include "client/packctl.h"
#include "packer/report.h"

#define CTL_VIEW_NAME_MAX 64

struct ctl_plan {
    struct ctl *ctl;
    const char *path, *field, *assign_path;
    bool skip_bad, lengths_only;
    uint32_t hidden, layers; /* 0: not given */
    char view_names[PD_REPORT_VIEWS_MAX][CTL_VIEW_NAME_MAX + 1];
    bool view_by_name[PD_REPORT_VIEWS_MAX]; /* what it takes stands in the samples' spans */
    bool view_seen[PD_REPORT_VIEWS_MAX];
    uint32_t *view_tokens[PD_REPORT_VIEWS_MAX]; /* per sample, of those by name */
    struct pd_report_options options;
    uint32_t *lengths; /* owned */
    size_t count, capacity;
    uint64_t empty; /* samples without tokens: left out, as push does */
    FILE *assign;
    uint64_t shown_ns; /* of the progress line */
    struct pd_report report;
};

void ctl_plan_json(const struct ctl_plan *plan);
void ctl_plan_text(const struct ctl_plan *plan);

#endif
