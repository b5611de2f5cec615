/* The method that an event is of: found, if it was seen before. */
#ifndef TRACEPOINT_HOOK_METHODS_H
#define TRACEPOINT_HOOK_METHODS_H

#include "hook.h"

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

/* The method entry in an ep[-2], or behind its svar; as check_method_entry. */
ALWAYS_INLINE const char *method_entry_in(VALUE word, int may_be_svar) {
  if (!is_object(word))
    return NULL;
  VALUE flags = ((const struct basic *)word)->flags;
  if ((flags & TYPE_MASK) != TYPE_IMEMO)
    return NULL;
  uint32_t imemo = (flags >> 12) & 15;
  if (likely(imemo == state.config.ment_imemo))
    return (const char *)word;
  if (imemo == state.config.svar_imemo && may_be_svar)
    return method_entry_in(((const struct basic *)word)->klass, 0); /* cref_or_me */
  return NULL;
}

/* ep[-2] is me, cref or svar; ep[-1] of a block is the ep around it. */
ALWAYS_INLINE int method_of_frame(const char *cfp, VALUE *owner, ID *id) {
  const VALUE *ep = *(const VALUE *const *)(cfp + state.config.cfp_ep);
  const char *me = NULL;
  while (!(ep[0] & state.config.local_flag)) {
    if ((me = method_entry_in(ep[-2], 0)))
      break;
    ep = (const VALUE *)(ep[-1] & ~(VALUE)3);
  }
  if (!me && !(me = method_entry_in(ep[-2], 1)))
    return 0;
  const char *definition = *(const char *const *)(me + state.config.me_def);
  *owner = *(const VALUE *)(me + state.config.me_owner);
  *id = *(const ID *)(definition + state.config.def_original_id);
  return 1;
}

/* The method an event is of, or NULL if it is of none. */
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
