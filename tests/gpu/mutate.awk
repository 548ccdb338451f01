# Instruments kernel sources for the mutation test: each tagged statement can be left out at run
# time.
#
#   awk -f mutate.awk -v first=1 -v table=OUT.inc SOURCE > OUT.cuh
#
#   statement; // [barrier], [mask], [bound], [reset]   becomes   if (simt_mutant != N) statement;
#   if (condition) // [guard]                becomes   if (simt_mutant == N || (condition))
#   // [work] marks a condition that only saves work: left as it is.
#
# Lines that look like protection and carry no tag are an error, so that none can be added
# unnoticed. The table gets one MUTANT(number, "file:line tag", "text") per mutant.

BEGIN { number = first - 1; bad = 0 }

function quoted(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/"/, "\\\"", text)
    return "\"" text "\""
}

function trimmed(text) {
    sub(/^ +/, "", text)
    return text
}

function tell(tag) {
    name = FILENAME
    sub(/.*\//, "", name)
    place = quoted(name ":" FNR " [" tag "]")
    print "MUTANT(" number ", " place ", " quoted(trimmed($0)) ")" > table
}

{
    comment = index($0, "//")
    code = comment ? substr($0, 1, comment - 1) : $0
    tag = ""
    if (match($0, /\/\/ \[[a-z]+\]/))
        tag = substr($0, RSTART + 4, RLENGTH - 5)
}

# A condition without a tag is fine where the statement it guards, on the next line, has one.
suspect != "" && tag == "" {
    print suspect > "/dev/stderr"
    bad = 1
}
{ suspect = "" }

tag == "barrier" || tag == "mask" || tag == "bound" || tag == "reset" {
    number++
    tell(tag)
    print "if (simt_mutant != " number ") " trimmed(code)
    next
}

tag == "guard" {
    number++
    tell(tag)
    open = index(code, "(")
    sub(/\) *$/, "", code)
    print substr(code, 1, open) "simt_mutant == " number " || (" substr(code, open + 1) "))"
    next
}

tag == "" && code !~ /^ \*|^\/\*|#define|DEV_FUNCTION/ &&
(code ~ /dev_barrier\(|dev_warp_sync\(|dev_copy_wait\(|= -INFINITY/ ||
 code ~ /(<|>|<=|>=) *[tp]\.(length|keys|tokens)/ || code ~ /(>=|<|>) (limit|length|keys)/) {
    suspect = FILENAME ":" FNR ": protection without a tag: " $0
}

{ print }

END {
    if (suspect != "")
        print suspect > "/dev/stderr"
    if (bad || suspect != "")
        exit 1
    if (number < first) {
        print FILENAME ": no tagged statement" > "/dev/stderr"
        exit 1
    }
}
