#!/usr/bin/env python3
"""Turns the status page into C: its bytes, and the policy that lets the browser run its own script and style and nothing else.

    embed.py status.html > page_html.c
"""

import base64
import hashlib
import re
import sys


def digest(text: str) -> str:
    """A source expression of a Content-Security-Policy for an inline element with this content."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def inline(html: str, tag: str) -> str:
    """The content of the page's one element of that kind."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
    if len(found) != 1:
        sys.exit(f"embed.py: the page has {len(found)} <{tag}> elements, expected 1")
    return found[0]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        html = file.read()
    policy = (f"default-src 'none'; style-src {digest(inline(html, 'style'))}; script-src {digest(inline(html, 'script'))}; "
              "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    data = html.encode()
    print('#include "server/page.h"\n')
    print(f'const char pd_page_policy[] = "{policy}";')
    print("const unsigned char pd_page_html[] = {")
    for at in range(0, len(data), 16):
        print("    " + " ".join(f"0x{byte:02x}," for byte in data[at:at + 16]))
    print("};")
    print("const size_t pd_page_html_bytes = sizeof pd_page_html;")


main()
