/* Drives hover_control.c through faults. Returns the number of the line of the first expectation that fails, or 0. */
#include "hover_control.h"

#define EXPECT(condition) \
    if (!(condition)) return __LINE__
static float given[HOVER_OBSERVATION], applied[HOVER_ACTION];
static uint32_t time_us;
static int there, selftest, applications, kicks;

int hover_selftest(void) { return selftest; }
int hover_read_observation(float *observation) {
    int i;
    for (i = 0; i < HOVER_OBSERVATION; i++) observation[i] = given[i];
    return there;
}
void hover_apply_action(const float *action) {
    int i;
    for (i = 0; i < HOVER_ACTION; i++) applied[i] = action[i];
    applications++;
}
uint32_t hover_now_us(void) { return time_us += 500u; }
void hover_kick_watchdog(void) { kicks++; }

static int same(const float *action) {
    int i;
    for (i = 0; i < HOVER_ACTION; i++)
        if (applied[i] != action[i]) return 0;
    return 1;
}

static int faults(void) {
    static hover_control c;
    float first[HOVER_ACTION];
    int i;
    time_us = 0xffffe000u; /* it wraps around */
    hover_control_init(&c);
    EXPECT(c.timeout_us == 100000u && c.low[0] == -1.0f && c.high[0] == 2.0f && c.safe[0] == 0.0f);
    c.safe[0] = 0.25f;
    c.timeout_us = 10000u;
    c.period_us = 400u;
    /* Before the self-test, and after it has failed, nothing but the safe action is applied. */
    there = 1;
    EXPECT(hover_control_step(&c) == HOVER_SAFE && same(c.safe) && kicks == 0);
    selftest = 3;
    EXPECT(hover_control_start(&c) == 3 && same(c.safe));
    EXPECT(hover_control_step(&c) == HOVER_SAFE && same(c.safe) && kicks == 0 && c.safes == 2u && applications == 3);
    selftest = 0;
    EXPECT(hover_control_start(&c) == 0 && same(c.safe) && kicks == 0);
    /* An observation is acted on, late by 100 us. */
    EXPECT(hover_control_step(&c) == HOVER_ACTED && hover_act_float(given, first) == 0 && same(first));
    EXPECT(c.acted == 1u && c.late == 1u && c.clamped == 0u && kicks == 1);
    /* The last action is held if a number is not finite, or nothing is there. */
    given[0] = 1e38f, given[0] *= 10.0f;
    EXPECT(hover_control_step(&c) == HOVER_HELD && same(first) && c.refused == 1u);
    given[0] -= given[0]; /* NaN */
    EXPECT(hover_control_step(&c) == HOVER_HELD && same(first) && c.refused == 2u && kicks == 3);
    there = 0;
    EXPECT(hover_control_step(&c) == HOVER_HELD && same(first) && c.missing == 1u);
    /* The time since the last good observation ends at the timeout, and stays ended until the next one. */
    for (i = 0; hover_control_step(&c) == HOVER_HELD; i++) EXPECT(i < 100 && same(first));
    EXPECT(i == 6 && same(c.safe) && kicks == i + 5 && c.safes == 3u);
    for (i = 0; i < 2; i++) { /* almost once around */
        time_us += 0x80000000u - 3000u;
        EXPECT(hover_control_step(&c) == HOVER_SAFE && same(c.safe));
    }
    there = 1, given[0] = 0.0f;
    EXPECT(hover_control_step(&c) == HOVER_ACTED && same(first));
    /* Actions are clamped to the limits of the application. */
    c.low[0] = first[0] + 0.125f;
    c.high[HOVER_ACTION - 1] = first[HOVER_ACTION - 1] - 0.125f;
    EXPECT(hover_control_step(&c) == HOVER_ACTED && c.clamped == 1u);
    EXPECT(applied[0] == c.low[0] && applied[HOVER_ACTION - 1] == c.high[HOVER_ACTION - 1]);
    EXPECT(c.acted == 3u && c.safes == 5u && applications == 19 && kicks == 15 && c.outside == 0u);
    /* Outside the calibrated box the policy acts all the same. */
    given[0] = 1e9f;
    EXPECT(hover_control_step(&c) == HOVER_ACTED && hover_act_float(given, first) == 1 && c.outside == 1u);
    EXPECT(c.acted == 4u && c.refused == 2u && applied[0] >= c.low[0]);
    return 0;
}

#ifdef __arm__
#define TOP 0x20400000u
/* On the bare Cortex-M4 of qemu's mps2-an386: the debugger, which is qemu, takes the result. */
static void reset(void) {
    uint32_t words[2] = {0x20026u, (uint32_t)faults()};
    register uint32_t r0 __asm__("r0") = 0x20;
    register uint32_t *r1 __asm__("r1") = words;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
__attribute__((section(".vectors"), used)) static const uint32_t vectors[] = {TOP, (uint32_t)reset};
#else
#include <stdio.h>
int main(void) {
    int line = faults();
    if (line) printf("%s:%d\n", __FILE__, line);
    return line != 0;
}
#endif
