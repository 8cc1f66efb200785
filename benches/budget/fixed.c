/* The same seeds of hashes in every run, so that tables look the same; and, where FIXED_CLOCK is set, a clock that
   goes on by 200 ns with each look, so that hardly a step begins. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

#ifndef PR_GET_AUXV
#define PR_GET_AUXV 0x41555856
#endif

/* Valgrind unmaps the vDSO and hides its address, but the kernel names the address to rustix, which reads there. With
   zeros there, rustix uses system calls. */
__attribute__((constructor)) static void replace_vdso(void) {
    ElfW(auxv_t) all[64] = {0};
    if (syscall(SYS_prctl, PR_GET_AUXV, all, sizeof all, 0, 0) < 0) return;
    for (ElfW(auxv_t) *it = all; it < all + 64 && it->a_type != AT_NULL; it++) {
        if (it->a_type != AT_SYSINFO_EHDR) continue;
        void *vdso = (void *)it->a_un.a_val;
        void *zeros = mmap(vdso, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (zeros != vdso && zeros != MAP_FAILED) munmap(zeros, 4096); /* there is a vDSO */
    }
}
