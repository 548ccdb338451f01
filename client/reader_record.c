/* JSON records: token ids as they are, or text as its UTF-8 bytes.
 *
 * Nothing in a record is trusted: every type, range and length is checked, and a text names the
 * field, what was found and what was expected. jansson keeps the order of an object's keys, which
 * decides the order of joined text fields. */
#include "client/reader_record.h"

#include "base/check.h"
#include "client/lib_error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static int bad(struct packd_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int bad(struct packd_error *error, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return pd_client_error(error, PACKD_EINVAL, "BAD_RECORD", "%s", text);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

/* ---- which fields ---------------------------------------------------------------------------- */

static bool add_name(struct pd_record *record, const char *name, size_t bytes)
{
    if (bytes == 0 || bytes >= PD_RECORD_NAME_MAX || record->name_count == PD_RECORD_FIELDS_MAX)
        return false;
    char *to = record->names[record->name_count++];
    memcpy(to, name, bytes);
    to[bytes] = 0;
    size_t at = strlen(record->shown);
    snprintf(record->shown + at, sizeof record->shown - at, "%s%s", at ? " + " : "", to);
    return true;
}

int pd_record_init(struct pd_record *record, const char *field, struct packd_error *error)
{
    *record = (struct pd_record){0};
    if (!field)
        return 0;
    record->explicit_names = true;
    for (;;) {
        size_t bytes = strcspn(field, ",");
        if (!add_name(record, field, bytes))
            return pd_client_error(error, PACKD_EINVAL, "BAD_FIELD",
                                   "--field takes 1 to %d names of 1 to %d bytes, with commas",
                                   PD_RECORD_FIELDS_MAX, PD_RECORD_NAME_MAX - 1);
        if (!field[bytes])
            return 0;
        field += bytes + 1;
    }
}

void pd_record_fini(struct pd_record *record)
{
    pd_buf_fini(&record->tokens);
    pd_buf_fini(&record->labels);
    pd_buf_fini(&record->mask);
    pd_buf_fini(&record->key);
    pd_buf_fini(&record->group);
}

/* tokens or input_ids, text or content, else every string of the record but key and group. */
static int decide(struct pd_record *record, const json_t *object, struct packd_error *error)
{
    static const char *const ids[] = {"tokens", "input_ids"}, *const texts[] = {"text", "content"};
    const char *name;
    json_t *value;
    for (size_t i = 0; i < PD_COUNT_OF(ids); i++)
        if (json_is_array(json_object_get(object, ids[i])))
            return add_name(record, ids[i], strlen(ids[i])) ? 0 : PACKD_EINVAL;
    for (size_t i = 0; i < PD_COUNT_OF(texts); i++)
        if (json_is_string(json_object_get(object, texts[i])))
            return add_name(record, texts[i], strlen(texts[i])) ? 0 : PACKD_EINVAL;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (!json_is_string(value) || strcmp(name, "key") == 0 || strcmp(name, "group") == 0)
            continue;
        if (!add_name(record, name, strlen(name)))
            return bad(error, "more than %d text fields; choose with --field",
                       PD_RECORD_FIELDS_MAX);
    }
    if (record->name_count == 0)
        return bad(error, "neither tokens nor input_ids (an array) nor any string is there");
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int take_integers(const json_t *array, const char *name, int64_t lowest, struct pd_buf *out,
                         struct packd_error *error)
{
    size_t i;
    json_t *value;
    json_array_foreach(array, i, value)
    {
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value))
            return bad(error, "%s[%zu] is %s: expected an integer", name, i, type_name(value));
        if ((number < 0 && number != lowest) || number > INT32_MAX)
            return bad(error, "%s[%zu] is %" JSON_INTEGER_FORMAT ": expected 0 to 2147483647%s",
                       name, i, number, lowest < 0 ? ", or -100" : "");
        pd_buf_put_u32(out, (uint32_t)(int32_t)number);
    }
    return out->failed ? pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory") : 0;
}

static int absent(const char *field, bool explicit_names, const json_t *object,
                  struct packd_error *error)
{
    char names[240] = "";
    size_t at = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%.60s", at ? ", " : "", name);
    }
    return bad(error, "no field %s; the record has %s%s%s", field, names[0] ? names : "no field",
               at >= sizeof names ? "..." : "",
               explicit_names ? "" : " (the first record of a file decides for all)");
}

static int take_text(struct pd_record *record, const json_t *object, struct packd_error *error)
{
    bool any = false;
    for (unsigned n = 0; n < record->name_count; n++) {
        const json_t *value = json_object_get(object, record->names[n]);
        if ((!value || json_is_null(value)) && !record->explicit_names && record->name_count > 1)
            continue;
        if (!value)
            return absent(record->names[n], record->explicit_names, object, error);
        if (!json_is_string(value))
            return bad(error, "field %s is %s: expected a string", record->names[n],
                       type_name(value));
        const uint8_t *text = (const uint8_t *)json_string_value(value);
        size_t bytes = json_string_length(value);
        if (any)
            pd_buf_put_u32(&record->tokens, '\n');
        uint8_t *to = pd_buf_extend(&record->tokens, bytes * 4);
        for (size_t i = 0; to && i < bytes; i++)
            memcpy(to + i * 4, &(uint32_t){text[i]}, 4);
        any = true;
    }
    if (record->tokens.failed)
        return pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory");
    return any ? 0 : bad(error, "none of the fields %s is there", record->shown);
}

static int take_tokens(struct pd_record *record, const json_t *object, struct packd_error *error)
{
    const json_t *value = json_object_get(object, record->names[0]);
    bool single = record->name_count == 1;
    if (single && json_is_array(value))
        return take_integers(value, record->names[0], 0, &record->tokens, error);
    if (single && strcmp(record->names[0], "tokens") != 0 &&
        strcmp(record->names[0], "input_ids") != 0)
        return take_text(record, object, error);
    if (!single)
        return take_text(record, object, error);
    if (!value)
        return absent(record->names[0], record->explicit_names, object, error);
    return bad(error, "field %s is %s: expected an array of integers", record->names[0],
               type_name(value));
}

static int take_labels(struct pd_record *record, const json_t *object, struct packd_sample *sample,
                       struct packd_error *error)
{
    const json_t *value = json_object_get(object, "labels");
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value) || json_array_size(value) != sample->count)
        return bad(error, "labels is %s of %zu entries: expected an array of %zu, one per token",
                   type_name(value), json_array_size(value), sample->count);
    sample->labels = NULL;
    int rc = take_integers(value, "labels", -100, &record->labels, error);
    sample->labels = (const int32_t *)(const void *)record->labels.data;
    return rc;
}

static int take_mask(struct pd_record *record, const json_t *object, struct packd_sample *sample,
                     struct packd_error *error)
{
    const json_t *value = json_object_get(object, "loss_mask");
    size_t i;
    json_t *at;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value) || json_array_size(value) != sample->count)
        return bad(error, "loss_mask is %s of %zu entries: expected an array of %zu, one per token",
                   type_name(value), json_array_size(value), sample->count);
    json_array_foreach(value, i, at)
    {
        bool zero = json_is_false(at) || (json_is_integer(at) && json_integer_value(at) == 0);
        bool one = json_is_true(at) || (json_is_integer(at) && json_integer_value(at) == 1);
        if (!zero && !one)
            return bad(error, "loss_mask[%zu] is %s: expected 0, 1, true or false", i,
                       type_name(at));
        pd_buf_put_u8(&record->mask, one);
    }
    sample->loss_mask = record->mask.data;
    return record->mask.failed ? pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory") : 0;
}

/* A string, or an integer as its digits; at most 255 bytes. */
static int take_name(const json_t *object, const char *name, struct pd_buf *out,
                     struct packd_bytes *to, struct packd_error *error)
{
    const json_t *value = json_object_get(object, name);
    char digits[32];
    if (!value || json_is_null(value))
        return 0;
    if (json_is_integer(value)) {
        int length =
            snprintf(digits, sizeof digits, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        pd_buf_put(out, digits, (size_t)length);
    } else if (json_is_string(value) && json_string_length(value) <= 255) {
        pd_buf_put(out, json_string_value(value), json_string_length(value));
    } else {
        return bad(error, "%s is %s: expected a string of at most 255 bytes, or an integer", name,
                   type_name(value));
    }
    *to = (struct packd_bytes){out->size_bytes, out->data};
    return out->failed ? pd_client_error(error, PACKD_ENOMEM, "MEMORY", "no memory") : 0;
}

static int take_numbers(const json_t *object, struct packd_sample *sample,
                        struct packd_error *error)
{
    const json_t *weight = json_object_get(object, "weight");
    const json_t *version = json_object_get(object, "version");
    if (weight && !json_is_null(weight)) {
        double number = json_number_value(weight);
        if (!json_is_number(weight) || !(number >= 0) || !isfinite((float)number))
            return bad(error, "weight is %s (%g): expected a number of at least 0",
                       type_name(weight), number);
        sample->has_weight = true;
        sample->weight = (float)number;
    }
    if (version && !json_is_null(version)) {
        if (!json_is_integer(version) || json_integer_value(version) < 0)
            return bad(error, "version is %s: expected an integer of at least 0",
                       type_name(version));
        sample->version = (uint64_t)json_integer_value(version);
    }
    return 0;
}

static int take_span_number(const json_t *span, const char *name, uint32_t lowest, uint32_t *to,
                            struct packd_error *error)
{
    const json_t *value = json_object_get(span, name);
    json_int_t number = value ? json_integer_value(value) : 0;
    if ((value && !json_is_integer(value)) || number < lowest || number > INT32_MAX)
        return bad(error, "%s of a span is %s: expected an integer of at least %u", name,
                   type_name(value), lowest);
    *to = (uint32_t)number;
    return 0;
}

static int take_span(struct pd_record *record, size_t i, const json_t *from,
                     struct packd_error *error)
{
    const json_t *view = json_object_get(from, "view");
    struct packd_span *span = &record->spans[i];
    *span = (struct packd_span){0};
    if (!json_is_object(from) || (view && !json_is_string(view)) ||
        (view && json_string_length(view) >= PD_RECORD_NAME_MAX))
        return bad(error,
                   "spans[%zu] is %s: expected {\"view\": \"name\", \"offset\": 0, "
                   "\"length\": 1, ...}",
                   i, type_name(from));
    if (view) {
        snprintf(record->views[i], sizeof record->views[i], "%s", json_string_value(view));
        span->view = record->views[i];
    }
    const struct {
        const char *name;
        uint32_t lowest, *to;
    } numbers[] = {{"offset", 0, &span->offset},   {"length", 1, &span->length},
                   {"patches", 0, &span->patches}, {"grid_t", 0, &span->grid_t},
                   {"grid_h", 0, &span->grid_h},   {"grid_w", 0, &span->grid_w}};
    for (size_t k = 0; k < PD_COUNT_OF(numbers); k++) {
        int rc = take_span_number(from, numbers[k].name, numbers[k].lowest, numbers[k].to, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Media spans, as packd_span has them. */
static int take_spans(struct pd_record *record, const json_t *object, struct packd_sample *sample,
                      struct packd_error *error)
{
    const json_t *value = json_object_get(object, "spans");
    size_t count = json_array_size(value);
    int rc = 0;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value) || count > PD_RECORD_SPANS_MAX)
        return bad(error, "spans is %s of %zu entries: expected an array of at most %d",
                   type_name(value), count, PD_RECORD_SPANS_MAX);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take_span(record, i, json_array_get(value, i), error);
    sample->spans = record->spans;
    sample->span_count = count;
    return rc;
}

int pd_record_take(struct pd_record *record, const json_t *object, struct packd_sample *sample,
                   struct packd_error *error)
{
    *sample = (struct packd_sample){0};
    struct pd_buf *const bufs[] = {&record->tokens, &record->labels, &record->mask, &record->key,
                                   &record->group};
    for (size_t i = 0; i < PD_COUNT_OF(bufs); i++)
        pd_buf_clear(bufs[i]);
    if (!json_is_object(object))
        return bad(error, "%s: expected an object", type_name(object));
    int rc = record->name_count ? 0 : decide(record, object, error);
    if (rc == 0)
        rc = take_tokens(record, object, error);
    if (rc != 0)
        return rc;
    sample->tokens = (const int32_t *)(const void *)record->tokens.data;
    sample->count = record->tokens.size_bytes / 4;
    if ((rc = take_labels(record, object, sample, error)) != 0 ||
        (rc = take_mask(record, object, sample, error)) != 0 ||
        (rc = take_name(object, "key", &record->key, &sample->key, error)) != 0 ||
        (rc = take_name(object, "group", &record->group, &sample->group, error)) != 0 ||
        (rc = take_spans(record, object, sample, error)) != 0 ||
        (rc = take_numbers(object, sample, error)) != 0)
        return rc;
    return sample->count > 0;
}

int pd_record_parse(struct pd_record *record, const char *text, size_t bytes,
                    struct packd_sample *sample, struct packd_error *error)
{
    json_error_t why;
    json_t *object = json_loadb(text, bytes, JSON_ALLOW_NUL, &why);
    if (!object)
        return bad(error, "not a JSON object: %s (column %d)", why.text, why.column);
    int rc = pd_record_take(record, object, sample, error);
    json_decref(object);
    return rc;
}
