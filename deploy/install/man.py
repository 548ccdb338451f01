#!/usr/bin/env python3
"""Writes the manual pages from what the programs say of themselves: packctl.1 and packd.8 from --help, packd.yaml.5 from the key table."""

import argparse
import os
import re
import subprocess

DATE = "2026"  # of the text; the version stands beside it


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def roff(text):
    """Text as roff shows it: no line is taken for a request, no dash for a hyphen."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def literal(text):
    return f".nf\n{roff(text.strip(chr(10)))}\n.fi\n"


def head(title, section, version, name, summary):
    return f'.TH {title} {section} {DATE} "packd {version}" "packd"\n.SH NAME\n{name} \\- {roff(summary)}\n'


def packctl_page(packctl, version):
    top = run(packctl, "--help")
    summary = re.match(r"packctl: (.*)", top).group(1)
    commands = re.findall(r"^  ([a-z][a-z-]*)  +\S", top, re.M)
    common = run(packctl, commands[0], "--help").split("For every command:\n")[1]
    page = head("PACKCTL", 1, version, "packctl", summary)
    page += ".SH SYNOPSIS\n.B packctl\n[\\-\\-server ADDR] COMMAND ...\n.SH COMMANDS\n"
    for command in commands:
        text = run(packctl, command, "--help") if command != "version" else "packctl version: print the version\n"
        title, _, body = text.split("For every command:\n")[0].partition("\n")
        page += f".SS {roff(command)}\n{roff(title.partition(': ')[2])}\n" + (literal(body) if body.strip() else "")
    page += ".SH OPTIONS OF EVERY COMMAND\n" + literal(common)
    page += ".SH ENVIRONMENT AND EXIT STATUS\n" + literal(top[top.index("Environment:"):])
    return page + ".SH SEE ALSO\n.BR packd (8),\n.BR packd.yaml (5)\n"


def packd_page(packd, version):
    text = run(packd, "--help")
    title, _, body = text.partition("\n")
    page = head("PACKD", 8, version, "packd", title.partition(": ")[2].rstrip("."))
    page += ".SH SYNOPSIS\n.B packd\n[OPTION]...\n.SH DESCRIPTION\n" + literal(body)
    return page + ".SH FILES\n.I /etc/packd/packd.yaml\n.SH SEE ALSO\n.BR packctl (1),\n.BR packd.yaml (5)\n"


def config_page(reference, version):
    page = head("PACKD.YAML", 5, version, "packd.yaml", "configuration of packd")
    page += ".SH DESCRIPTION\n"
    for line in run(reference, "config").splitlines():
        cells = [c.strip().replace("\\|", "|") for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("## "):
            page += f".SH {roff(line[3:].replace('`', '').upper())}\n"
        elif len(cells) == 4 and cells[0].startswith("`"):
            key, value, default, meaning = (roff(c.replace("`", "")) for c in cells)
            page += f".TP\n.B {key}\n{meaning}\n{value}; default {default}\n"
        elif line and not line.startswith(("#", "|")):
            page += roff(line.replace("`", "").replace("**", "")) + "\n"
        elif not line:
            page += ".PP\n"
    return re.sub(r"(\.PP\n)+(?=\.|$)", "", page) + ".SH SEE ALSO\n.BR packd (8)\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("packd", "packctl", "reference", "out"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    version = run(options.packd, "--version").split()[1]
    os.makedirs(options.out, exist_ok=True)
    pages = {
        "packctl.1": packctl_page(options.packctl, version),
        "packd.8": packd_page(options.packd, version),
        "packd.yaml.5": config_page(options.reference, version),
    }
    for name, text in pages.items():
        with open(os.path.join(options.out, name), "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
