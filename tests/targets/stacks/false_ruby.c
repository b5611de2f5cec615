/* Pretends to be a Ruby. Its VM pointer leads to memory that changes all the time and is
   full of pointers to itself: endless lists, threads, and stacks. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

const char ruby_version[] = "3.1.2";
void *ruby_current_vm_ptr;
void ruby_vm_at_exit(void) {}
void *rb_cObject;
int rb_iseq_label, ruby_current_ec;

enum { WORDS = 1 << 20 };
static uint64_t garbage[WORDS];

int main(void) {
    ruby_current_vm_ptr = garbage;
    uint64_t state = 88172645463325252ull;
    for (uint64_t round = 0;; round++) {
        for (int i = 0; i < WORDS; i++) {
            state ^= state << 13; state ^= state >> 7; state ^= state << 17;
            if (round == 0 || state % 64 == 0)
                garbage[i] = state % 8 == 0 ? state
                             : (uint64_t)&garbage[(state >> 20) % WORDS];
        }
        if (round == 0) { puts("ready"); fflush(stdout); }
    }
}
