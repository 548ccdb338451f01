/* The status page: server/page/status.html as it is, put into the program by the build. */
#ifndef PD_SERVER_PAGE_H
#define PD_SERVER_PAGE_H

#include <stddef.h>

/* The Content-Security-Policy it is served with: its own script and style by their digests, no
 * others, and /status.json. */
extern const char pd_page_policy[];
extern const unsigned char pd_page_html[];
extern const size_t pd_page_html_bytes;

#endif
