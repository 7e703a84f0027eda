/* jinja_methods.h - what the method tables share. Threads: the render's. */
#ifndef QN_TEXT_JINJA_METHODS_H
#define QN_TEXT_JINJA_METHODS_H

#include "text/jinja_run.h"

/* The methods of str, ended by an entry without a name (no failure: data). */
extern const qn_jfn qn_jstr_methods[];

/* A built-in method bound to its value. Errors: memory. */
qn_jval qn_jbind(qn_jrun *run, qn_jval self, const qn_jfn *fn);

#endif
