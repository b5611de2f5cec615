/* Methods by number: class, ID, and whether they are selected. */
#include "memory.h"
#include "methods.h"

VALUE attached_to(VALUE klass) {
  if (rb_class_attached_object)
    return rb_class_attached_object(klass);
  return rb_attr_get(klass, attached_name);
}

int is_singleton(VALUE owner) {
  return type_of(owner) == TYPE_CLASS && rb_class_real(owner) != owner;
}

/* Return whether a module's name is `name`, or continues after it with the character `more`. */
static int name_begins(VALUE module, const char *name, size_t length, const char *more) {
  VALUE text = rb_mod_name(module);
  if (!is_object(text) || type_of(text) != TYPE_STRING)
    return 0;
  const char *bytes = rb_string_value_ptr(&text);
  for (size_t i = 0; i < length; i++)
    if (bytes[i] != name[i])
      return 0;
  return bytes[length] == 0 || bytes[length] == *more;
}

static int has_name(VALUE module, const char *name, size_t length) {
  return name_begins(module, name, length, "");
}

static int selects(const struct selector *selector, VALUE owner, ID id) {
  if (selector->id && selector->id != id)
    return 0;
  if (!selector->kind && !selector->owner_length)
    return 1;
  int singleton = is_singleton(owner);
  if (selector->kind && (selector->kind == 2) != singleton)
    return 0;
  if (!selector->owner_length)
    return 1;
  if (singleton) {
    owner = attached_to(owner);
    if (!is_object(owner))
      return 0;
    if (type_of(owner) != TYPE_CLASS && type_of(owner) != TYPE_MODULE)
      owner = rb_obj_class(owner);
  }
  return has_name(owner, selector->owner, selector->owner_length);
}

/* Return whether the agent defines it. Such methods run in the program's threads at a fork. */
static int is_own_method(VALUE owner) {
  static const char name[] = "Tracepoint::Agent";
  if (!is_object(owner))
    return 0;
  if (is_singleton(owner))
    owner = attached_to(owner);
  if (!is_object(owner) || (type_of(owner) != TYPE_CLASS && type_of(owner) != TYPE_MODULE))
    return 0;
  return name_begins(owner, name, sizeof(name) - 1, ":");
}

size_t selector_size(const struct selector *selector) {
  return sizeof(*selector) + (((size_t)selector->owner_length + 7) & ~(size_t)7);
}

/* program: set to the program of the first matching selector with expressions, or 0 */
static int is_selected(VALUE owner, uint64_t id, uint32_t kind, uint32_t *program) {
  *program = 0;
  if (kind > KIND_C)
    return 1;
  if (is_own_method(owner))
    return 0;
  if (!(state.config.flags & FLAG_SELECT))
    return 1;
  int found = 0;
  const char *at = (const char *)state.selectors;
  for (uint32_t i = 0; i < state.config.selectors && !*program; i++) {
    const struct selector *selector = (const struct selector *)at;
    if ((!found || selector->wants) && selects(selector, owner, id)) {
      found = 1;
      *program = selector->wants ? i + 1 : 0;
    }
    if (found && !state.evaluating)
      break;
    at += selector_size(selector);
  }
  return found;
}

static const struct key no_room = {.selected = 1};
static const struct key no_room_unselected = {.selected = 0};

static int is_of_class(VALUE owner) {
  if (!is_object(owner) || !is_singleton(owner))
    return 0;
  VALUE attached = attached_to(owner);
  return is_object(attached) &&
         (type_of(attached) == TYPE_CLASS || type_of(attached) == TYPE_MODULE);
}

/* Like is_selected, by the class it is called on or the class that defines it. */
static int is_selected_of(VALUE owner, VALUE definer, uint64_t id, uint32_t kind,
                          uint32_t *program) {
  uint32_t other = 0;
  int selected = is_selected(definer, id, kind, program);
  if (owner != definer && is_selected(owner, id, kind, &other)) {
    selected = 1;
    if (!*program || (other && other < *program))
      *program = other;
  }
  return selected;
}

/* The first call of Ractor.new reveals other Ractors, however short-lived. */
static int is_ractor_new(VALUE owner, uint64_t id) {
  return id == new_name && &rb_cRactor && owner == ((const struct basic *)rb_cRactor)->klass;
}

/* Start with few slots: a sparse table does not fit the caches. */
enum { FIRST_KEYS_BITS = 8 };

int make_keys(void) {
  unsigned bits = FIRST_KEYS_BITS;
  while (1ull << bits < 2ull * state.config.max_methods)
    bits++;
  state.keys_size = sizeof(struct key) << (bits + 1);
  state.all_keys = map_private(state.keys_size);
  state.keys_shift = 64 - FIRST_KEYS_BITS;
  state.keys = state.all_keys + (1u << FIRST_KEYS_BITS);
  return state.all_keys != NULL;
}

static uint64_t free_key(VALUE owner, uint64_t id_and_kind) {
  uint64_t mask = (1ull << (64 - state.keys_shift)) - 1;
  uint64_t i = hash_of(owner, id_and_kind);
  while (state.keys[i].id_and_kind)
    i = (i + 1) & mask;
  return i;
}

/* Holders of a key of the older table may keep using it: it stays, and stays valid. */
static void grow_keys(void) {
  const struct key *before = state.keys;
  uint64_t size = 1ull << (64 - state.keys_shift);
  state.keys += size;
  state.keys_shift--;
  for (const struct key *key = before; key < before + size; key++)
    if (key->id_and_kind)
      state.keys[free_key(key->owner, key->id_and_kind)] = *key;
}

/* Selection may run the garbage collector, whose hook may get here: search again afterwards. */
const struct key *new_key(VALUE owner, uint64_t id, uint32_t key_kind,
                                       VALUE definer) {
  uint32_t program;
  uint32_t kind = key_kind - (key_kind >= KIND_RUBY_INHERITED ? KIND_INHERITED : 0);
  int selected = is_selected_of(owner, definer, id, kind, &program);
  int of_class = kind <= KIND_C && is_of_class(owner);
  if (kind == KIND_RUBY && is_ractor_new(owner, id))
    state.header->conditions |= CONDITION_OTHER_RACTORS;
  if (kind != key_kind && !of_class)
    return key_of(definer, id, kind); /* not a singleton class of a class or module */
  uint64_t mask = (1ull << (64 - state.keys_shift)) - 1;
  uint64_t id_and_kind = id << 3 | key_kind;
  uint64_t i = hash_of(owner, id_and_kind);
  for (; state.keys[i].id_and_kind; i = (i + 1) & mask)
    if (state.keys[i].owner == owner && state.keys[i].id_and_kind == id_and_kind &&
        state.known[state.keys[i].method].definer == definer)
      return &state.keys[i];
  if (state.methods_used == state.config.max_methods) {
    state.header->conditions |= CONDITION_METHODS_FULL;
    return selected ? &no_room : &no_room_unselected;
  }
  if (2ull * state.methods_used > mask) {
    grow_keys();
    i = free_key(owner, id_and_kind);
  }
  struct shared_method *method = &state.methods[state.methods_used];
  method->owner = owner;
  method->id = id;
  method->kind = kind;
  method->selected = (uint32_t)selected;
  state.keys[i] = (struct key){owner, id_and_kind, state.methods_used, (uint8_t)selected,
                               (uint8_t)(of_class && kind == key_kind), (uint16_t)program};
  state.known[state.methods_used] = (struct known){owner, id << 3 | kind, definer};
  RELEASE(state.header->methods, ++state.methods_used);
  return &state.keys[i];
}

/* Return the key of a method of classes or modules for its receiver. */
const struct key *key_of_class(const struct key *key, VALUE self) {
  VALUE definer = key->owner;
  if (!is_object(self))
    return key;
  VALUE owner = ((const struct basic *)self)->klass;
  if (likely(owner == definer))
    return key;
  return key_in(owner, key->id_and_kind >> 3, (key->id_and_kind & 7) + KIND_INHERITED, definer);
}

enum { FRAMES_COMPARED = 64 };

/*
 * A discarded fiber leaves calls open, and a new fiber may reuse its memory. Return whether
 * each of the outer frames still runs the method that was entered there.
 */
int has_same_frames(const struct stream *s, const struct trace_arg *arg) {
  if (!state.has_offsets)
    return 1; /* unknown */
  for (uint32_t i = 0; i < s->depth && i < FRAMES_COMPARED; i++) {
    const struct call *call = &s->calls[i];
    const struct known *known = &state.known[call->method];
    VALUE owner = 0;
    ID id = 0;
    if (call->key <= (uint64_t)arg->cfp)
      break; /* not a current frame: abandon_above handles it */
    if (call->is_c || !call->method)
      continue;
    if (!method_of_frame((const char *)call->key, &owner, &id) || id != known->id_and_kind >> 3)
      return 0;
    if (owner != known->definer && is_object(owner) && type_of(owner) == TYPE_ICLASS)
      owner = ((const struct basic *)owner)->klass;
    if (owner != known->definer)
      return 0;
  }
  return 1;
}
