/* shard_private.h - what the files of this room share about shards. Threads: any. */
#ifndef QN_FORMAT_SHARD_PRIVATE_H
#define QN_FORMAT_SHARD_PRIVATE_H

#include "format/shard.h"

/* A hash of the header's bytes (no failure). */
uint64_t qn_shard_header_hash(const qn_shard *s);

/* As qn_shards_forget (no failure). */
void qn_shard_forget(const qn_shard *s);

/* The place of a tensor in the merged table, for qn_shards_at; SIZE_MAX if absent (no failure). */
size_t qn_shards_index(const qn_shards *s, const char *name);

#endif
