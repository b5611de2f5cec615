/*
 * The interface between the parts of the hook.
 *
 * Each part is a .c file; together they make one shared object. The other .h files hold
 * the code that every event runs, which is inlined into calls.c. The names below have
 * hidden visibility: they are not exported, and calls do not go through the PLT.
 */
#ifndef TRACEPOINT_HOOK_HOOK_H
#define TRACEPOINT_HOOK_HOOK_H

#include <stddef.h>
#include <stdint.h>

#include "cruby.h"
#include "shared.h"
#include "state.h"

#define COLD __attribute__((cold)) /* placed away from its callers */

#pragma GCC visibility push(hidden)

/* clock.c */
uint64_t thread_cpu_ns(void);
enum clock best_clock(void);

/* sites.c */
void site_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth);
void site_c_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth);
void site_return(uint64_t owner, uint64_t id, const char *ec, uint64_t depth, int64_t duration);
void site_c_return(uint64_t owner, uint64_t id, const char *ec, uint64_t depth,
                   int64_t duration);
void site_gc_begin(const char *ec);
void site_gc_end(const char *ec, int64_t duration);
void site_raise(uint64_t owner, uint64_t exception, const char *ec);
void site_object(uint64_t owner, uint64_t object, const char *ec);

/* rings.c */
COLD void drop(struct stream *s, uint32_t records);
const char *thread_of(const struct stream *s);
COLD void tell(struct stream *s, uint64_t time, uint32_t depth);
COLD int catch_up(struct stream *s, uint64_t time, uint32_t depth);

/* streams.c */
size_t calls_size(void);
size_t active_size(void);
COLD void abandon(struct stream *s);
COLD struct stream *switch_stream(const struct trace_arg *arg, const char *vm_stack);

/* tables.c */
int has_entries_alone(void);
COLD uint32_t new_block(uint32_t method, uint32_t part);
COLD void carry(uint32_t block, uint32_t place);
int make_histograms(const struct header *header);
void drop_histograms(void);

/* methods.c */
enum { FIRST = 256 }; /* number of events, and of methods, that each arming checks */

VALUE attached_to(VALUE klass);
int is_singleton(VALUE owner);
size_t selector_size(const struct selector *selector);
int make_keys(void);
COLD const struct key *new_key(VALUE owner, uint64_t id, uint32_t key_kind, VALUE definer);
const struct key *key_of_class(const struct key *key, VALUE self);
int has_same_frames(const struct stream *s, const struct trace_arg *arg);

/* checks.c */
void remove_hooks(void);
COLD int is_checked(const struct trace_arg *arg);
COLD int verified_method(const struct trace_arg *arg, VALUE *owner, ID *id);

/* expressions.c */
void know_expressions(void);
void mark_evaluations(void);
void forget_evaluations(void);
void hook_fibers(void);
int evaluate(const struct trace_arg *arg, uint32_t program, int is_c, struct values *values);
int put_with_values(struct stream *s, uint64_t time, uint32_t method, uint32_t depth,
                    uint8_t kind, const struct values *values);

/* calls.c: indexed by enum mode */
extern const hook_function hooks[];

/* objects.c */
extern int no_inner; /* true if inner events must not be hooked: agent/ractors.rb */

void know_main_ractor(void);
int is_main_ractor(void);
void hook_inner(VALUE data, const struct trace_arg *arg);

/* targets.c */
void enter_target(uint16_t target);
void leave_target(uint16_t target);
void begin_targets(void);
void tell_other_ractors(void);

/* arming.c */
void mark_classes(void *unused);
void check_fork(void);

/* The methods of Tracepoint::Agent::Native, by name and number of arguments. */
#define ENTRIES(ENTRY) \
  ENTRY(arm, 1) \
  ENTRY(stop, 0) \
  ENTRY(inner, 1) \
  ENTRY(others, 0) \
  ENTRY(beats, 0) \
  ENTRY(renew, 1) \
  ENTRY(release, 0) \
  ENTRY(forget, 0) \
  ENTRY(best_clock, 0) \
  ENTRY(clock, 1) \
  ENTRY(counters, 0) \
  ENTRY(method_at, 1) \
  ENTRY(attached, 1) \
  ENTRY(refinement, 1) \
  ENTRY(id_of, 1) \
  ENTRY(own, 1) \
  ENTRY(watch, 0) \
  ENTRY(use, 4) \
  ENTRY(forked, 0) \
  ENTRY(target, 1) \
  ENTRY(target_calls, 1) \
  ENTRY(target_inside, 1) \
  ENTRY(target_over, 1) \
  ENTRY(left_out, 0) \
  ENTRY(singleton, 1)

#define PARAMETERS_0
#define PARAMETERS_1 , VALUE a
#define PARAMETERS_2 PARAMETERS_1, VALUE b
#define PARAMETERS_4 PARAMETERS_2, VALUE c, VALUE d

#define DECLARED(name, arity) VALUE native_##name(VALUE self PARAMETERS_##arity);

ENTRIES(DECLARED)

#pragma GCC visibility pop

#endif
