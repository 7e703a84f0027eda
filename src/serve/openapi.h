/* openapi.h - the bytes of docs/openapi.json, put into the program at build time. Threads: any. */
#ifndef QN_SERVE_OPENAPI_H
#define QN_SERVE_OPENAPI_H

#include <stddef.h>

extern const char qn_openapi_json[];      /* [qn_openapi_json_size], no NUL behind it */
extern const size_t qn_openapi_json_size;

#endif
