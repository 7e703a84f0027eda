/* tool_formats.h - the formats of tool calls, one file per group of families. tool_format.c lists
 * them; the parsers may use each other where a family writes several forms.
 *
 * Threads: any; formats are constant.
 */
#ifndef QN_SERVE_TOOL_FORMATS_H
#define QN_SERVE_TOOL_FORMATS_H

#include "serve/tool_format.h"

/* tool_json.c: JSON bodies. */
extern const qn_tool_format qn_tool_json, qn_tool_kimi, qn_tool_mistral;

/* tool_xml.c: one tag per argument. */
extern const qn_tool_format qn_tool_qwen, qn_tool_minimax, qn_tool_minicpm, qn_tool_muse;

/* tool_glm.c: pairs of keys and values. */
extern const qn_tool_format qn_tool_glm, qn_tool_laguna, qn_tool_longcat;

/* tool_braces.c: literals in braces and brackets. */
extern const qn_tool_format qn_tool_gemma, qn_tool_function_gemma, qn_tool_pythonic;

/* tool_xtml.c: tags made of special tokens. */
extern const qn_tool_format qn_tool_kimi_k3;

/* harmony.c: gpt-oss. */
extern const qn_tool_format qn_tool_harmony;

#endif
