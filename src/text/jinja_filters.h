/* jinja_filters.h - the filters, in three files by what they work on. Threads: the render's. */
#ifndef QN_TEXT_JINJA_FILTERS_H
#define QN_TEXT_JINJA_FILTERS_H

#include "text/jinja_run.h"

/* Tables ended by an entry without a name: texts and numbers, sequences, map and select (no
 * failure: data). */
extern const qn_jfn qn_jfilters_text[], qn_jfilters_seq[], qn_jfilters_map[];

/* The value that a dotted attribute path such as "a.b.0" finds in an item; path QN_J_MISSING or
 * QN_J_NONE: the item itself. dflt replaces undefined on the way unless QN_J_MISSING or QN_J_NONE.
 * Errors: attribute of undefined. */
qn_jval qn_jpath_get(qn_jrun *run, qn_jval item, qn_jval path, qn_jval dflt);

/* A string in lower case; other values as they are. Errors: memory. */
qn_jval qn_jignore_case(qn_jrun *run, qn_jval v);

/* str(v) unless v is a string: what filters do with their subject. Errors: memory. */
qn_jval qn_jsoft_str(qn_jrun *run, qn_jval v);

/* The parameter as an integer; dflt if it was not given. Errors: not an integer: recorded. */
int64_t qn_jarg_int(qn_jrun *run, qn_jval v, int64_t dflt);

/* The parameter's truth; dflt if it was not given (no failure). */
static inline bool qn_jarg_bool(qn_jval v, bool dflt)
{
    return v.type == QN_J_MISSING ? dflt : qn_jtruth(v);
}

#endif
