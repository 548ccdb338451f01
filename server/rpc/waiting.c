/* Wait reasons in words. Pure; any thread. */
#include "server/rpc/waiting.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What the client is told of a reason: the wire's and the words; and what the metrics call it. */
static const struct {
    Packd__V1__WaitReason wire;
    const char *words, *label;
} reasons[] = {
    [PD_WAIT_NONE] = {PACKD__V1__WAIT_REASON__WAIT_UNSPECIFIED, "", ""},
    [PD_WAIT_SAMPLES] = {PACKD__V1__WAIT_REASON__WAIT_SAMPLES, "the window needs more samples",
                         "samples"},
    [PD_WAIT_LANE] = {PACKD__V1__WAIT_REASON__WAIT_LANE,
                      "the lane whose turn it is has no sample left", "source"},
    [PD_WAIT_STREAM] = {PACKD__V1__WAIT_REASON__WAIT_STREAM,
                        "a producer that has to come has not opened its stream yet", "stream"},
    [PD_WAIT_ALL_STREAMS_ENDED] =
        {PACKD__V1__WAIT_REASON__WAIT_ALL_STREAMS_ENDED_FEED_OPEN,
         "all streams have ended, but nobody has ended the feed (packctl end-feed)", "end_feed"},
    [PD_WAIT_PLAN] = {PACKD__V1__WAIT_REASON__WAIT_PLAN, "planning is under way", "plan"},
    [PD_WAIT_HORIZON] = {PACKD__V1__WAIT_REASON__WAIT_HORIZON,
                         "too far ahead of what a trainer has received whole (plan_ahead)",
                         "horizon"},
    [PD_WAIT_LOG_FULL] = {PACKD__V1__WAIT_REASON__WAIT_LOG_FULL,
                          "the log is full: producers have no credit", "log_full"},
    [PD_WAIT_BUILDING] = {PACKD__V1__WAIT_REASON__WAIT_BUILD,
                          "the batch is planned and being built", "build"},
    [PD_WAIT_MEMORY] = {PACKD__V1__WAIT_REASON__WAIT_MEMORY,
                        "no room in memory.batches until other ranks read theirs", "memory"},
    [PD_WAIT_SELF_TEST] = {PACKD__V1__WAIT_REASON__WAIT_SELF_TEST,
                           "the validator's self-test comes first", "self_test"},
    [PD_WAIT_STOPPED] = {PACKD__V1__WAIT_REASON__WAIT_HALTED,
                         "the feed has stopped and needs an operator; see its status", "halted"},
    [PD_WAIT_DIVERGED] = {PACKD__V1__WAIT_REASON__WAIT_DIVERGED,
                          "planning again gave another plan; needs an operator", "diverged"},
};

const char *pd_waiting_label(enum pd_wait_reason reason)
{
    return reasons[reason].label;
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
    if (waiting->message.streams_total < count)
        waiting->message.streams_total = (uint32_t)count;
}

void pd_waiting_make_feed(struct pd_waiting *waiting, const struct pd_wait_info *info,
                          uint64_t incarnation)
{
    bool named = info->source[0] || info->streams[0];

    begin(waiting, info->step, 0, info->since_ns, incarnation);
    waiting->message.reason = reasons[info->reason].wire;
    waiting->message.samples_needed = info->samples_needed;
    waiting->message.packs_missing = info->packs_missing;
    waiting->message.streams_total = info->streams_total;
    if (info->source[0]) {
        memcpy(waiting->source, info->source, sizeof(waiting->source));
        waiting->sources[0] = waiting->source;
        waiting->message.sources = waiting->sources;
        waiting->message.n_sources = 1;
    }
    split_names(waiting, info->streams);
    (void)snprintf(waiting->text, sizeof(waiting->text), "%s%s%s%s%s", reasons[info->reason].words,
                   named ? ": " : "", info->source, info->source[0] && info->streams[0] ? ": " : "",
                   info->streams);
}

void pd_waiting_make(struct pd_waiting *waiting, const struct pd_wait_info *info, uint32_t micro,
                     uint64_t incarnation)
{
    char words[sizeof(waiting->text)];

    pd_waiting_make_feed(waiting, info, incarnation);
    waiting->message.micro = micro;
    memcpy(words, waiting->text, sizeof(words));
    (void)snprintf(waiting->text, sizeof(waiting->text), "step %" PRIu64 ": %.440s", info->step,
                   words);
}

void pd_waiting_stall(Packd__V1__Stall *message, const struct pd_stall *stall)
{
    packd__v1__stall__init(message);
    message->feed = (char *)stall->feed;
    message->job = (char *)stall->job;
    message->first_step = stall->first_step;
    message->bytes_held = stall->bytes_held;
    message->bytes_per_step = stall->bytes_per_step;
    message->bytes_max = stall->bytes_max;
}

void pd_waiting_make_commit(struct pd_waiting *waiting, const struct pd_stall *stall)
{
    waiting->message.reason = PACKD__V1__WAIT_REASON__WAIT_COMMIT;
    pd_waiting_stall(&waiting->stall, stall);
    waiting->message.stall = &waiting->stall;
    (void)snprintf(waiting->text, sizeof(waiting->text),
                   "step %" PRIu64 ": the log is full of steps from %" PRIu64
                   " on that job %s has not committed, and producers wait for it",
                   waiting->message.step, stall->first_step, stall->job);
}

void pd_waiting_make_credit(struct pd_waiting *waiting, uint64_t step, uint32_t micro,
                            uint64_t since_ns, uint64_t incarnation)
{
    begin(waiting, step, micro, since_ns, incarnation);
    waiting->message.reason = PACKD__V1__WAIT_REASON__WAIT_CREDIT;
    (void)snprintf(waiting->text, sizeof(waiting->text),
                   "step %" PRIu64 ": this client has granted no credit", step);
}
