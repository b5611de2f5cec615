/*
 * Measures the time that a loop loses that only reads the clock: gaps between two readings
 * that are longer than a reading, and shorter than another program's time slice.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#define LEAST 1000 /* ns: an interrupt takes longer */
#define MOST 50000 /* ns: beyond, another program had the CPU, or the host took it */

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

/* Spin for ``ns`` of CPU time. Return the lost part of this time, in 1/1e9. */
uint64_t spin(uint64_t ns)
{
	uint64_t start = now(), before = start, at, lost = 0, away = 0;

	while ((at = now()) - start < ns + away) {
		if (at - before > MOST)
			away += at - before;
		else if (at - before > LEAST)
			lost += at - before;
		before = at;
	}
	return lost * 1000000000ULL / (at - start - away);
}
