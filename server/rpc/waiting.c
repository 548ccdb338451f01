/* Wait reasons in words. Pure; any thread. */
#include "server/rpc/waiting.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static Packd__V1__WaitReason reason_of(enum pd_wait_reason reason)
{
    switch (reason) {
    case PD_WAIT_NONE:
        break;
    case PD_WAIT_SAMPLES:
        return PACKD__V1__WAIT_REASON__WAIT_SAMPLES;
    case PD_WAIT_ALL_STREAMS_ENDED:
        return PACKD__V1__WAIT_REASON__WAIT_ALL_STREAMS_ENDED_FEED_OPEN;
    case PD_WAIT_NO_STREAMS:
        return PACKD__V1__WAIT_REASON__WAIT_STREAM;
    case PD_WAIT_BUILDING:
        return PACKD__V1__WAIT_REASON__WAIT_BUILD;
    case PD_WAIT_MEMORY:
        return PACKD__V1__WAIT_REASON__WAIT_MEMORY;
    case PD_WAIT_HORIZON:
        return PACKD__V1__WAIT_REASON__WAIT_HORIZON;
    case PD_WAIT_STOPPED:
        return PACKD__V1__WAIT_REASON__WAIT_HALTED;
    }
    return PACKD__V1__WAIT_REASON__WAIT_UNSPECIFIED;
}

static const char *words_of(enum pd_wait_reason reason)
{
    switch (reason) {
    case PD_WAIT_NONE:
        break;
    case PD_WAIT_SAMPLES:
        return "the window needs more samples";
    case PD_WAIT_ALL_STREAMS_ENDED:
        return "all streams have ended, but nobody has ended the feed (packctl end-feed)";
    case PD_WAIT_NO_STREAMS:
        return "no producer has opened a stream yet";
    case PD_WAIT_BUILDING:
        return "the batch is planned and being built";
    case PD_WAIT_MEMORY:
        return "no room in memory.batches until other ranks read theirs";
    case PD_WAIT_HORIZON:
        return "too far ahead of what the job's other ranks have received (plan_ahead)";
    case PD_WAIT_STOPPED:
        return "the feed is halted by a violation; see the server's log";
    }
    return "";
}

static void begin(struct pd_waiting *waiting, uint64_t step, uint32_t micro, uint64_t since_ns,
                  uint64_t incarnation)
{
    packd__v1__waiting__init(&waiting->message);
    waiting->message.step = step;
    waiting->message.micro = micro;
    waiting->message.since_unix_ms = since_ns / 1000000u;
    waiting->message.incarnation = incarnation;
    waiting->message.text = waiting->text;
}

/* "a,b,c" as a list; the copy in `names` is cut up. */
static void split_names(struct pd_waiting *waiting, const char *names)
{
    char *save = NULL;
    size_t count = 0;

    (void)snprintf(waiting->names, sizeof(waiting->names), "%s", names);
    for (char *name = strtok_r(waiting->names, ",", &save); name && count < PD_WAITING_NAMES_MAX;
         name = strtok_r(NULL, ",", &save)) {
        name += strspn(name, " ");
        if (*name != '\0' && strcmp(name, "...") != 0)
            waiting->streams[count++] = name;
    }
    waiting->message.streams = waiting->streams;
    waiting->message.n_streams = count;
    waiting->message.streams_total = (uint32_t)count;
}

void pd_waiting_make(struct pd_waiting *waiting, const struct pd_wait_info *info, uint32_t micro,
                     uint64_t incarnation)
{
    begin(waiting, info->step, micro, info->since_ns, incarnation);
    waiting->message.reason = reason_of(info->reason);
    waiting->message.samples_needed = info->samples_needed;
    waiting->message.packs_missing = info->packs_missing;
    split_names(waiting, info->streams);
    (void)snprintf(waiting->text, sizeof(waiting->text), "step %" PRIu64 ": %s%s%s", info->step,
                   words_of(info->reason), info->streams[0] ? ": " : "", info->streams);
}

void pd_waiting_make_credit(struct pd_waiting *waiting, uint64_t step, uint32_t micro,
                            uint64_t since_ns, uint64_t incarnation)
{
    begin(waiting, step, micro, since_ns, incarnation);
    waiting->message.reason = PACKD__V1__WAIT_REASON__WAIT_CREDIT;
    (void)snprintf(waiting->text, sizeof(waiting->text),
                   "step %" PRIu64 ": this client has granted no credit", step);
}
