/* Moves the clock of the process it is preloaded into, as one that a person sets moves: CLOCK_REALTIME alone.
 *
 * The file that CLOCK_OFFSET names holds the offset, eight bytes, microseconds. It is mapped, so a jump is seen at once.
 * (libfaketime, which does the same and more, hangs in programs that allocate with jemalloc, as redis-server does.) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) abort(); /* rather than to tell the true time */
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (offset == MAP_FAILED) abort();
    close(file);
}

static int64_t micros(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (offset ? *offset : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME) return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t us = micros();
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    int64_t us = micros();
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = micros() / 1000000;
    if (now) *now = seconds;
    return seconds;
}
