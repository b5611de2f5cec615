/* Looks up the method of an event. */
#ifndef TRACEPOINT_HOOK_METHODS_H
#define TRACEPOINT_HOOK_METHODS_H

#include "frames.h"

ALWAYS_INLINE uint64_t hash_of(VALUE owner, uint64_t id_and_kind) {
  return (owner + (id_and_kind << 5)) * 0x9e3779b97f4a7c15 >> state.keys_shift;
}

ALWAYS_INLINE const struct key *key_in(VALUE owner, uint64_t id, uint32_t kind, VALUE definer) {
  uint64_t mask = (1ull << (64 - state.keys_shift)) - 1;
  uint64_t id_and_kind = id << 3 | kind;
  uint64_t i = hash_of(owner, id_and_kind);
  for (; likely(state.keys[i].id_and_kind); i = (i + 1) & mask)
    if (likely(state.keys[i].owner == owner && state.keys[i].id_and_kind == id_and_kind) &&
        (kind < KIND_RUBY_INHERITED || state.known[state.keys[i].method].definer == definer))
      return &state.keys[i];
  return new_key(owner, id, kind, definer);
}

ALWAYS_INLINE const struct key *key_of(VALUE owner, uint64_t id, uint32_t kind) {
  return key_in(owner, id, kind, owner);
}

/* Return the method of an event, or NULL if it has none. */
ALWAYS_INLINE const struct key *method_of(const struct trace_arg *arg, uint32_t kind) {
  VALUE owner = arg->klass;
  ID id = arg->id;
  if (owner) {
    if (unlikely(type_of(owner) == TYPE_ICLASS))
      owner = ((const struct basic *)owner)->klass;
  } else if (unlikely(!state.has_offsets)) {
    if (!rb_frame_method_id_and_class(&id, &owner))
      return NULL;
  } else if (unlikely(state.to_verify)) {
    if (!verified_method(arg, &owner, &id))
      return NULL;
  } else if (unlikely(!method_of_frame(arg->cfp, &owner, &id))) {
    return NULL;
  }
  const struct key *key = key_of(owner, id, kind);
  return unlikely(key->of_class) ? key_of_class(key, arg->self) : key;
}

#endif
