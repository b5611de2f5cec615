/* The functions that are mined, of structures like CRuby's. */
#include <stdlib.h>

struct objspace {
  long before[2];
  struct {
    unsigned mode : 2, immediate : 1, dont_gc : 1, dont_incremental : 1;
    unsigned during_gc : 1, during_compacting : 2;
  } flags;
};

struct at_exit {
  void (*function)(void);
  struct at_exit *next;
};

struct vm {
  char before[1128];
  struct objspace *objspace;
  struct at_exit *at_exit;
};

struct fiber {
  char before[536];
  unsigned status : 2, yielding : 1, blocking : 1;
};

#ifdef HIDDEN
__attribute__((visibility("hidden")))
#endif
struct vm *ruby_current_vm_ptr;

struct fiber *check(long value);
void refuse(void) __attribute__((noreturn));

void ruby_vm_at_exit(void (*function)(void)) {
  struct vm *vm = ruby_current_vm_ptr;
  struct at_exit *made = malloc(sizeof *made);
  made->function = function;
  made->next = vm->at_exit;
  vm->at_exit = made;
}

int rb_during_gc(void) {
#ifdef HIDDEN
  if (!ruby_current_vm_ptr) return 0;
#endif
  return ruby_current_vm_ptr->objspace->flags.during_gc;
}

long rb_fiber_alive_p(long value) {
  struct fiber *fiber = check(value);
  if (!fiber) refuse();
  return fiber->status == 3 ? 0 : 0x14;
}

static struct {
  struct {
    void (*function)(void *);
    void *data;
  } jobs[32];
} postponed_job_queue;

int rb_postponed_job_preregister(unsigned flags, void (*function)(void *), void *data) {
  for (int i = 0; i < 32; i++) {
    void *found = __sync_val_compare_and_swap(&postponed_job_queue.jobs[i].function, 0, function);
    if (!found || found == function) {
      __sync_lock_test_and_set(&postponed_job_queue.jobs[i].data, data);
      return i;
    }
  }
  return -1;
}
