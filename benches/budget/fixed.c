/* The same seeds of hashes in every run, so that tables look the same; and, where FIXED_CLOCK is set, a clock that
   goes on by 200 ns with each look, so that hardly a step begins. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

ssize_t getrandom(void *buffer, size_t length, unsigned int flags) {
    (void)flags;
    memset(buffer, 0x5e, length);
    return (ssize_t)length;
}

static int is_fixed;

__attribute__((constructor)) static void look(void) { is_fixed = getenv("FIXED_CLOCK") != NULL; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!is_fixed) return (int)syscall(SYS_clock_gettime, clock, time);
    static unsigned long looks;
    unsigned long ns = 200 * looks++;
    time->tv_sec = (clock == CLOCK_REALTIME ? 1790000000 : 1000000) + (time_t)(ns / 1000000000);
    time->tv_nsec = (long)(ns % 1000000000);
    return 0;
}
