# bash completion of packctl and packd: what it offers is read from their own --help, so it is never behind them.

_packd_options() { "$@" --help 2>/dev/null | grep -oE -- '(^|[[ |])--[a-z][a-z-]*' | tr -d ' [|' | sort -u; }

_packd_complete() {
    local program=$1 word=$2 previous=$3 command= i
    COMPREPLY=()
    case $previous in
    --config | --out | --data-dir | --ports-file | --assign) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --server | --listen) COMPREPLY=($(compgen -W "127.0.0.1:7070 unix:/run/packd/packd.sock" -- "$word")); return ;;
    esac
    if [ "${program##*/}" = packctl ]; then
        for ((i = 1; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --server | --timeout) ((i++)) ;;
            -*) ;;
            *) command=${COMP_WORDS[i]}; break ;;
            esac
        done
        if [ -z "$command" ] && [[ $word != -* ]]; then
            COMPREPLY=($(compgen -W "$("$program" --help 2>/dev/null | sed -nE 's/^  ([a-z][a-z-]*)  +[^ ].*/\1/p')" -- "$word"))
            return
        fi
    fi
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$(_packd_options "$program" $command)" -- "$word"))
    elif [ "$command" = log ]; then
        COMPREPLY=($(compgen -W "ls verify stat copy" -- "$word") $(compgen -d -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}
complete -o filenames -F _packd_complete packctl packd
