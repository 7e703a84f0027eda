/* template_builders.c - prompts for models whose form is not a Jinja template of their own.
 *
 * DeepSeek-V3.2's form is written here as a template of ours, so that values print and turn into
 * JSON exactly as everywhere else.
 */
#include "text/template_builders.h"

#include <stdlib.h>
#include <string.h>

#include "text/template.h"

qn_code qn_build_fallback(const json_t *vars, qn_buf *out, qn_err *err)
{
    static const char source[] =
        "{%- set given = role_mapping if role_mapping is defined else none -%}"
        "{%- set prefix = given or {'system': \"ASSISTANT's RULE: \", 'user': 'USER: ', "
        "'assistant': 'ASSISTANT: ', "
        "'system_prompt': 'A chat between a curious user and an artificial intelligence assistant. "
        "The "
        "assistant follows the given rules no matter what.', 'stop': '\\n'} -%}"
        "{%- set text -%}{%- for m in messages -%}"
        "{{ prefix.get(m['role'], '') }}{{ m.get('content', '') }}{{ prefix.get('stop', '') }}"
        "{%- endfor -%}{{ prefix.get('assistant', '') }}{%- endset -%}{{ text.rstrip() }}";
    qn_template *t;
    qn_code rc = qn_template_compile(&t, source, sizeof source - 1,
                                     "the form for models without a chat template", err);
    if (!rc) rc = qn_template_render(t, vars, out, err);
    qn_template_free(rc ? NULL : t);
    return rc;
}

static const char deepseek_source[] =
    "{%- set bos, eos = '<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>' -%}"
    "{%- set mode = thinking_mode if thinking_mode is defined else 'thinking' -%}"
    "{%- if enable_thinking is defined -%}{%- set mode = 'thinking' if enable_thinking else 'chat' "
    "-%}{%- endif -%}"
    "{%- if mode not in ['chat', 'thinking'] -%}{{ raise_exception('thinking_mode must be chat or "
    "thinking, not ' ~ mode) }}{%- endif -%}"
    "{%- set ns = namespace(last=-1) -%}"
    "{%- for m in messages -%}{%- if m.get('role') in ['user', 'developer'] -%}{%- set ns.last = "
    "loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- macro extras(m) -%}"
    "{%- set list = tools or m.get('tools') -%}"
    "{%- if list -%}{{ '\n\n' }}{{ preamble(list) }}{%- endif -%}"
    "{%- if m.get('response_format') -%}{{ '\n\n## Response Format:\n\nYou MUST strictly adhere to "
    "the following schema to reply:\n' }}{{ m.response_format | tojson }}{%- endif -%}"
    "{%- endmacro -%}"
    "{%- macro preamble(list) -%}"
    "{{ '## Tools\n\n"
    "You have access to a set of tools you can use to answer the user\\'s question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following "
    "as part of your reply to the user:\n"
    "<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while "
    "lists and objects should use JSON format. The \"string\" attribute should be set to \"true\" "
    "for string type parameters and \"false\" for other types (numbers, booleans, arrays, "
    "objects).\n"
    "\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider "
    "outputting a thinking block. Here is an example:\n"
    "\n"
    "<｜DSML｜function_calls>\n"
    "...\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n"
    "\n"
    "<think>...thinking about results</think>\n"
    "\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n' }}"
    "{%- for t in list -%}{{ '\n' if not loop.first }}{{ t['function'] | tojson }}{%- endfor -%}"
    "{{ '\n</functions>\n' }}"
    "{%- endmacro -%}"
    "{%- macro user(content, index) -%}"
    "{{ '<｜User｜>' }}{{ content }}{{ '<｜Assistant｜>' }}{{ '<think>' if index == ns.last and "
    "mode == 'thinking' else '</think>' }}"
    "{%- endmacro -%}"
    "{%- macro calls(list) -%}"
    "{{ '\n\n<｜DSML｜function_calls>' }}"
    "{%- for call in list -%}"
    "{%- if call['function'].name is undefined or call['function'].arguments is undefined -%}{{ "
    "raise_exception('a tool call needs function.name and function.arguments') }}{%- endif -%}"
    "{{ '\n<｜DSML｜invoke name=\"' ~ call['function'].name ~ '\">\n' }}"
    "{%- for key, value in call['function'].arguments.items() -%}"
    "{{ '\n' if not loop.first }}{{ '<｜DSML｜parameter name=\"' ~ key ~ '\" string=\"' ~ ('true' "
    "if value is string else 'false') ~ '\">' }}"
    "{{ value if value is string else value | tojson }}{{ '</｜DSML｜parameter>' }}"
    "{%- endfor -%}"
    "{{ '\n</｜DSML｜invoke>' }}"
    "{%- endfor -%}"
    "{{ '\n</｜DSML｜function_calls>' }}"
    "{%- endmacro -%}"
    "{%- macro result(m, index) -%}"
    "{%- set at = namespace(prev=index - 1) -%}"
    "{%- for i in range(index) -%}{%- if at.prev >= 0 and messages[at.prev].get('role') == 'tool' "
    "-%}{%- set at.prev = at.prev - 1 -%}{%- endif -%}{%- endfor -%}"
    "{%- set owner = messages[at.prev] -%}"
    "{%- if index > 0 and (at.prev < 0 or owner.get('role') != 'assistant') -%}{{ "
    "raise_exception('the tool result in message ' ~ index ~ ' does not follow an assistant "
    "message') }}{%- endif -%}"
    "{%- set order = index - at.prev -%}"
    "{%- set made = owner.get('tool_calls') or [] -%}"
    "{%- if made | length < order -%}{{ raise_exception('the tool result in message ' ~ index ~ ' "
    "has no tool call') }}{%- endif -%}"
    "{{ '\n\n<function_results>' if order == 1 }}{{ '\n<result>' }}{{ m.get('content') }}{{ "
    "'</result>' }}"
    "{%- if order == made | length -%}{{ '\n</function_results>\n\n' }}{{ '<think>' if index >= "
    "ns.last and mode == 'thinking' else '</think>' }}{%- endif -%}"
    "{%- endmacro -%}"
    "{%- set text -%}"
    "{{ bos }}"
    "{%- for m in messages -%}"
    "{%- set role, index = m.get('role'), loop.index0 -%}"
    "{%- if mode == 'thinking' and index < ns.last and role not in ['user', 'system', 'tool', "
    "'assistant'] -%}{{ raise_exception('in thinking mode a ' ~ role ~ ' message must not stand "
    "before the last user message (message ' ~ index ~ ')') }}{%- endif -%}"
    "{%- if role == 'system' -%}{{ m.get('content') or '' }}{{ extras(m) }}"
    "{%- elif role == 'developer' -%}"
    "{%- if not m.get('content') -%}{{ raise_exception('a developer message needs content (message "
    "' ~ index ~ ')') }}{%- endif -%}"
    "{{ user(extras(m) ~ '\n\n# The user\\'s message is: ' ~ m.content, index) }}"
    "{%- elif role == 'user' -%}{{ user(m.get('content'), index) }}"
    "{%- elif role == 'tool' -%}{{ result(m, index) }}"
    "{%- elif role == 'assistant' -%}"
    "{%- if mode == 'thinking' and index > ns.last -%}"
    "{%- if not m.get('reasoning_content') and not m.get('tool_calls') -%}{{ raise_exception('in "
    "thinking mode an assistant message after the last user message needs reasoning_content or "
    "tool_calls (message ' ~ index ~ ')') }}{%- endif -%}"
    "{{ m.get('reasoning_content') or '' }}{{ '</think>' }}"
    "{%- endif -%}"
    "{{ m.get('content') or '' }}{{ calls(m.tool_calls) if m.get('tool_calls') }}{{ eos }}"
    "{%- else -%}{{ raise_exception('unknown role ' ~ role ~ ' (message ' ~ index ~ ')') }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- endset -%}"
    "{%- if continue_final_message and add_generation_prompt -%}{{ raise_exception('only one of "
    "continue_final_message and add_generation_prompt can be true') }}{%- endif -%}"
    "{%- if not add_generation_prompt and messages[-1].role == 'user' -%}{%- set text = "
    "text.removesuffix('<｜Assistant｜><think>') -%}{%- endif -%}"
    "{%- if continue_final_message and messages[-1].role == 'assistant' -%}{%- set text = "
    "text.removesuffix(eos) -%}{%- endif -%}"
    "{{ text }}";

/* The reference reads arguments as JSON text, the server has them as objects: accept both. */
static qn_code parse_arguments(json_t *vars, qn_err *err)
{
    json_t *messages = json_object_get(vars, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *fn = json_object_get(json_array_get(calls, k), "function");
            json_t *text = json_object_get(fn, "arguments"), *parsed;
            if (!json_is_string(text)) continue;
            json_error_t why;
            parsed = json_loadb(json_string_value(text), json_string_length(text), JSON_DECODE_ANY,
                                &why);
            if (!parsed)
                return qn_err_set(err, QN_INVALID,
                                  "messages[%zu].tool_calls[%zu]: the arguments are not JSON: %s",
                                  i, k, why.text);
            if (json_object_set_new(fn, "arguments", parsed))
                return qn_err_set(err, QN_NOMEM, "out of memory");
        }
    }
    return QN_OK;
}

qn_code qn_build_deepseek_v32(const json_t *vars, qn_buf *out, qn_err *err)
{
    json_t *copy = json_deep_copy(vars);
    if (!copy) return qn_err_set(err, QN_NOMEM, "chat template: out of memory");
    qn_template *t = NULL;
    qn_code rc = parse_arguments(copy, err);
    if (!rc)
        rc = qn_template_compile(&t, deepseek_source, sizeof deepseek_source - 1, "deepseek_v32",
                                 err);
    if (!rc) rc = qn_template_render(t, copy, out, err);
    qn_template_free(t);
    json_decref(copy);
    return rc;
}
