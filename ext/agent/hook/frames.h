/* Finds the method of a control frame in the same way as Ruby. */
#ifndef TRACEPOINT_HOOK_FRAMES_H
#define TRACEPOINT_HOOK_FRAMES_H

#include "hook.h"

/* The method entry in an ep[-2] or its svar, as in check_method_entry. */
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

/* ep[-2] is a method entry, cref, or svar. In a block, ep[-1] is the enclosing ep. */
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

#endif
