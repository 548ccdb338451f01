/* packctl log: a data directory looked at without a server, or beside a running one: what is in it,
 * whether it is whole, and a copy.
 *
 * Place: over the log's inspection (server/log_inspect.h), not over the wire. It changes nothing in
 * the directory. */
#include "client/packctl.h"
#include "server/log_inspect.h"

#include <inttypes.h>
#include <string.h>

static int failed(const struct ctl *ctl, const struct pd_error *error)
{
    ctl_message("%s", error->text);
    if (ctl->json)
        printf("{\"error\": \"%s\"}\n", error->reason);
    return error->code == PD_ECORRUPT ? CTL_DAMAGED : CTL_INPUT;
}

/* ---- stat ---- */

static int show_stat(const struct ctl *ctl, struct pd_log *log)
{
    struct pd_log_facts facts;
    struct pd_error error = {0};
    if (pd_log_inspect_facts(log, &facts, &error) != 0)
        return failed(ctl, &error);
    const char *line = ctl->json ? "{\"log_id\": \"%s\", \"incarnation\": %" PRIu64
                                   ", \"next_position\": %" PRIu64 ", \"used_bytes\": %" PRIu64
                                   ", \"file_bytes\": %" PRIu64 ", \"tables\": {"
                                 : "log %s, opened %" PRIu64 " times, next position %" PRIu64
                                   "\n%" PRIu64 " bytes in use, %" PRIu64 " in the file\n";
    printf(line, facts.log_id, facts.incarnation, facts.next_position, facts.used_bytes,
           facts.file_bytes);
    for (int i = 0; i < PD_LOG_TABLES; i++) {
        const struct pd_log_table *table = &facts.tables[i];
        if (ctl->json)
            printf("%s\"%s\": {\"entries\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", i ? ", " : "",
                   table->name, table->entries, table->bytes);
        else
            printf("  %-10s %12" PRIu64 " entries %15" PRIu64 " bytes\n", table->name,
                   table->entries, table->bytes);
    }
    printf("%s", ctl->json ? "}}\n" : "");
    return CTL_OK;
}

/* ---- ls ---- */

static int show_record(void *ctx, const struct pd_record *record)
{
    const struct ctl *ctl = ctx;
    printf(ctl->json ? "{\"position\": %" PRIu64 ", \"type\": \"%s\", \"feed\": %u, "
                       "\"bytes\": %zu}\n"
                     : "%12" PRIu64 "  %-10s feed %u, %zu bytes\n",
           record->position, pd_record_type_name(record->type), record->feed, record->size_bytes);
    return ferror(stdout) ? PD_EIO : 0;
}

static int list_records(struct ctl *ctl, struct pd_log *log)
{
    struct pd_error error = {0};
    int rc = pd_log_inspect_records(log, show_record, ctl, &error);
    if (rc && !error.code)
        pd_error_set(&error, rc, "OUTPUT", "cannot write the list");
    return rc ? failed(ctl, &error) : CTL_OK;
}

/* ---- verify ---- */

static int verify(const struct ctl *ctl, struct pd_log *log)
{
    struct pd_log_findings f;
    struct pd_error error = {0};
    if (pd_log_inspect_verify(log, &f, &error) != 0)
        return failed(ctl, &error);
    if (ctl->json)
        printf("{\"clean\": %s, \"values\": %" PRIu64 ", \"blocks\": %" PRIu64
               ", \"samples\": %" PRIu64 ", \"sample_bytes\": %" PRIu64 ", \"packs\": %" PRIu64
               ", \"damaged\": %" PRIu64 "}\n",
               f.damaged ? "false" : "true", f.values, f.blocks, f.samples, f.sample_bytes, f.packs,
               f.damaged);
    else
        printf("%s: %" PRIu64 " values, %" PRIu64 " blocks, %" PRIu64 " samples of %" PRIu64
               " bytes, %" PRIu64 " packs; %" PRIu64 " damaged\n",
               f.damaged ? "DAMAGED" : "clean", f.values, f.blocks, f.samples, f.sample_bytes,
               f.packs, f.damaged);
    if (f.damaged)
        ctl_message("the first: %s", f.first);
    return f.damaged ? CTL_DAMAGED : CTL_OK;
}

/* ---- copy ---- */

static int copy(const struct ctl *ctl, struct pd_log *log, const char *to)
{
    struct pd_error error = {0};
    if (pd_log_inspect_copy(log, to, &error) != 0)
        return failed(ctl, &error);
    if (ctl->json)
        printf("{\"copied\": true}\n");
    else
        ctl_note(ctl, "copied to %s; packd --data-dir %s serves it", to, to);
    return CTL_OK;
}

static int run_on(struct ctl *ctl, const char *what, struct pd_log *log, const char *to)
{
    if (strcmp(what, "stat") == 0)
        return show_stat(ctl, log);
    if (strcmp(what, "ls") == 0)
        return list_records(ctl, log);
    return strcmp(what, "verify") == 0 ? verify(ctl, log) : copy(ctl, log, to);
}

static int run_log(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{NULL, 0, NULL, 0}};
    while (ctl_getopt(ctl, argc, argv, none) != -1)
        ;
    if (optind + 2 > argc)
        return ctl_usage(ctl, "expected ls, verify, stat or copy, and a directory");
    const char *what = argv[optind], *path = argv[optind + 1];
    bool copies = strcmp(what, "copy") == 0;
    if (!copies && strcmp(what, "ls") != 0 && strcmp(what, "verify") != 0 &&
        strcmp(what, "stat") != 0)
        return ctl_usage(ctl, "'%s' is none of ls, verify, stat, copy", what);
    if (optind + 2 + copies != argc)
        return ctl_usage(ctl, copies ? "copy takes two directories" : "%s takes one directory",
                         what);
    struct pd_log *log = NULL;
    struct pd_error error = {0};
    if (pd_log_inspect_open(path, &log, &error) != 0)
        return failed(ctl, &error);
    int rc = run_on(ctl, what, log, copies ? argv[optind + 2] : NULL);
    pd_log_inspect_close(log);
    return rc;
}

const struct ctl_command ctl_log_command = {
    .name = "log",
    .arguments = "ls|verify|stat DIR, copy DIR TO",
    .summary = "look at a data directory: list, verify, measure, copy (no server)",
    .help =
        "  packctl log stat packd-data              tables, entries, bytes\n"
        "  packctl log ls packd-data                every record, one a line\n"
        "  packctl log verify packd-data            all digests, samples and plans; 5 if damaged\n"
        "  packctl log copy packd-data backup       a consistent copy, also while packd runs\n",
    .run = run_log,
};
