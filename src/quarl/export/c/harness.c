/* Writes to the pipe "out" what policy.c makes of each observation in the pipe "in": raw outputs, then the action, with
   every bit set where it refuses; what policy_act returned; the ticks, of 40 instructions each, that it took on a bare
   Cortex-M in qemu, and the bytes of the stack that have been used there, elsewhere 0. */
#include "policy.h"

#ifdef POLICY_STATE /* which follows the observation, and the outputs */
#define ROW (POLICY_OBSERVATION + POLICY_STATE)
static policy_state state;
#define ACT(action) policy_act(&state, x, action)
#else
#define ROW POLICY_OBSERVATION
#define ACT(action) policy_act(x, action)
#endif
static POLICY_NUMBER x[ROW];
static union {
    uint32_t words[POLICY_RAW + POLICY_ACTION + 3];
    POLICY_RESULT results[POLICY_RAW + POLICY_ACTION];
} y;

#ifdef __arm__
#define TOP 0x20400000u
#define LOWEST ((uint32_t *)(TOP - 0x100000u))
#define PAINT 0x5aa55aa5u
#define CLOCK ((volatile uint32_t *)0xe000e010)
#define OPEN(name, mode) ask(1, (uint32_t)name, (const void *)(*mode == 'r' ? 1 : 5), sizeof name - 1)
#define GET(file, data) get(file, (unsigned char *)data, sizeof data)
#define PUT(file, data) ask(5, file, data, sizeof data)
#define NOW CLOCK[2]
typedef uint32_t file;

/* Asks the debugger, which here is qemu. */
static uint32_t ask(uint32_t what, uint32_t first, const void *second, uint32_t third) {
    uint32_t words[3] = {first, (uint32_t)second, third};
    register uint32_t r0 __asm__("r0") = what;
    register uint32_t *r1 __asm__("r1") = words;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* Reads size bytes, as few at a time as the pipe has; returns 0 at its end. */
static int get(file in, unsigned char *to, uint32_t size) {
    uint32_t left = size, before;
    while (left) {
        before = left;
        left = ask(6, in, to + size - left, left);
        if (left == before) return 0;
    }
    return 1;
}
#else
#include <stdio.h>
#define OPEN(name, mode) fopen(name, mode)
#define GET(file, data) (fread(data, sizeof data, 1, file) == 1)
#define PUT(file, data) fwrite(data, sizeof data, 1, file), fflush(file)
#define NOW 0u
typedef FILE *file;
#endif

int main(void) {
    file in = OPEN("in", "rb"), out = OPEN("out", "wb");
    uint32_t before, i, *cost = y.words + POLICY_RAW + POLICY_ACTION;
#ifdef __arm__
    uint32_t here, *deepest = (uint32_t *)TOP, *from = LOWEST;
    __asm__("mov %0, sp" : "=r"(here));
#endif
    while (GET(in, x)) {
        for (i = 0; i < POLICY_RAW + POLICY_ACTION; i++) y.words[i] = 0xffffffffu;
        policy_raw(x, y.words);
#ifdef POLICY_STATE
        for (i = 0; i < POLICY_STATE; i++) state.numbers[i] = x[POLICY_OBSERVATION + i];
#endif
        before = NOW;
        cost[0] = (uint32_t)ACT(y.results + POLICY_RAW);
        cost[1] = (before - NOW) & 0xffffffu;
#ifdef POLICY_STATE
        for (i = 0; i < POLICY_STATE; i++) y.words[POLICY_RAW - POLICY_STATE + i] = state.numbers[i];
#endif
#ifdef __arm__
        while (*from == PAINT) from++;
        if (from < deepest) deepest = from;
        from = deepest - 1024;
        cost[2] = here - (uint32_t)deepest;
#endif
        PUT(out, y.words);
    }
#ifdef __arm__
    ask(0x20, 0x20026, 0, 0);
#endif
    return 0;
}

#ifdef __arm__
static void reset(void) {
    uint32_t *p;
    for (p = LOWEST; p < (uint32_t *)(TOP - 256u); p++) *p = PAINT;
    CLOCK[1] = 0xffffff;
    CLOCK[0] = 5;
    main();
}
__attribute__((section(".vectors"), used)) static const uint32_t vectors[] = {TOP, (uint32_t)reset};
#endif
