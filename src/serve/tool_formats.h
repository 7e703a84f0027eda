/* tool_formats.h - the formats of tool calls, one file per group of families. Only tool_format.c
 * uses them by name.
 *
 * Threads: any; formats are constant.
 */
#ifndef QN_SERVE_TOOL_FORMATS_H
#define QN_SERVE_TOOL_FORMATS_H

#include "serve/tool_format.h"

/* tool_json.c: JSON bodies. */
extern const qn_tool_format qn_tool_json;

#endif
