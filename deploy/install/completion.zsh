#compdef packctl packd
# zsh completion of packctl and packd: what it offers is read from their own --help, so it is never behind them.
local program=$words[1] command= word
local -a commands options
if [[ ${program:t} == packctl ]]; then
    for word in ${words[2,CURRENT-1]}; do
        [[ $word == -* ]] || { command=$word; break; }
    done
    if [[ -z $command && $PREFIX != -* ]]; then
        commands=(${(f)"$($program --help 2>/dev/null | sed -nE 's/^  ([a-z][a-z-]*)  +([^ ].*)/\1:\2/p')"})
        _describe command commands
        return
    fi
fi
if [[ $PREFIX == -* ]]; then
    options=(${(f)"$($program $command --help 2>/dev/null | grep -oE -- '(^|[[ |])--[a-z][a-z-]*' | tr -d ' [|' | sort -u)"})
    compadd -a options
else
    _files
fi
