/* Prints how many of N requantised sums, sums, products and quotients differ from the processor's floats, and how many
   products were exact ties. Every third multiplier is such that a product lies next to a tie. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include "kernels.c"

static uint64_t state = 88172645463325252u;
static uint64_t drawn(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static float number(real bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static real bits(float value) {
    real number;
    memcpy(&number, &value, 4);
    return number;
}

static int differs(float expected, real given) {
    return !isnan(expected) && !isinf(expected) && bits(expected) != given;
}

int main(int count, char **arguments) {
    long i, wrong = 0, ties = 0, rounds = count > 1 ? atol(arguments[1]) : 1000000;
    for (i = 0; i < rounds; i++) {
        int32_t sum = (int32_t)(drawn() >> (33 + drawn() % 28)) * (drawn() & 1 ? -1 : 1);
        float multiplier = number((uint32_t)((drawn() % 60 + 90) << 23) | (uint32_t)(drawn() & 0x7fffff));
        if (i % 3 == 0 && sum)
            multiplier = fabsf(((float)(drawn() % 256) - 127.5f) / (float)sum);
        int low = -(int)(drawn() % 256), high = low + 255;
        volatile float product = (float)sum * multiplier;
        double whole = rint(product);
        int expected = whole < low ? low : whole > high ? high : (int)whole;
        ties += fabs(product) < 1e6 && fabsf(product) - floorf(fabsf(product)) == 0.5f;
        int room = 31 - width((uint64_t)llabs(sum)), shift = room - (int)(drawn() % 2) * (room > 0);
        int k = (int)(bits(multiplier) >> 23) - shift - 93;
        uint32_t code = k < 0 ? 0 : ((bits(multiplier) & 0x7fffffu) | 0x800000u) << 7 | (uint32_t)k;
        wrong += requantized(sum, code, shift, low, high) != expected;

        real a = (real)drawn(), b = (real)drawn();
        if (i & 1) /* exponents side by side, so that digits cancel */
            b = (b & 0x807fffffu) | ((((a >> 23) & 255) + (uint32_t)(drawn() % 5) - 2) & 255) << 23;
        if (((a >> 23) & 255) == 255 || ((b >> 23) & 255) == 255)
            continue;
        volatile float x = number(a), y = number(b), total = x + y, times = x * y, part = x / y, root = sqrtf(fabsf(x));
        wrong += differs(total, add(a, b)) + differs(times, multiply(a, b));
        wrong += y != 0 && (differs(part, divide(a, b)) || differs(part, divide_by(a, b, reciprocal(b))));
        wrong += fabsf(x) > 1.2e-38f && differs(root, square_root(a & ~SIGN));
    }
    printf("%ld %ld\n", wrong, ties);
    return 0;
}
