/*
 * Patches a site as a tracer would, in the process's private copy of the page.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef PATCH_H
#define PATCH_H

#include "libstapsdt.h"

/* Put a breakpoint's bytes there; never to be called. */
int patch_breakpoint(const sdt_probe *probe);
int patch_restore(const sdt_probe *probe);

/*
 * Make calls of the site land in a recorder. It overwrites the two sites that
 * follow, so they must not be anybody's.
 */
int patch_record(const sdt_probe *probe);
extern uint64_t patch_recorded[SDT_MAX_OPERANDS];
extern unsigned patch_calls;

#endif /* PATCH_H */
