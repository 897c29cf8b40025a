/* A float32 number is its 32 bits, a code an integer counted from its zero point. */
typedef uint32_t real;

#define SIGN 0x80000000u
#define EACH(i, n) for (i = 0; i < (n); i++)

typedef char arithmetic_shift[(-1 >> 1) == -1 ? 1 : -1]; /* as all compilers for boards have it */

/* Weights are fields of words, for four rows each. The fields of columns j and j + 1 are 16 bits apart, so one mask
   takes both out of a word, and DOT adds the products of a pair. */
#if defined(__GNUC__) && defined(__ARM_FEATURE_DSP) && !defined(__ARM_BIG_ENDIAN)
#include <arm_acle.h>
/* A mask in a register is shifted at no cost. A barrier keeps words from being loaded before registers are free. */
#define MASK(field)                       \
    uint32_t mask = (field) * 0x10001u; \
    __asm__("" : "+r"(mask))
#define BARRIER __asm__ volatile("" ::: "memory")
#define PAIR(x, from) \
    int32_t x;        \
    __builtin_memcpy(&x, from, 4)
#define DOT(sum, w, x) sum = (uint32_t)__smlad((int32_t)(w), x, (int32_t)sum)
#define DOT_SIGNED DOT
#define DOT_HELD DOT
#define TWICE(once, again) once again
#define PAIRS 2
#else
#ifdef __GNUC__
#define BARRIER __asm__ volatile("" ::: "memory")
#define HOLD(sum) __asm__("" : "+r"(sum))
#else
#define BARRIER
#define HOLD(sum) (void)0
#endif
#define MASK(field) const uint32_t mask = (field) * 0x10001u
#define PAIR(x, from) const uint32_t x##0 = (uint32_t)(from)[0], x##1 = (uint32_t)(from)[1]
#define DOT(sum, w, x) sum += ((w) & 0xffffu) * x##0, sum += ((w) >> 16) * x##1
#define DOT_SIGNED(sum, w, x) sum += (uint32_t)(int16_t)((w) & 0xffffu) * x##0 + (uint32_t)((int32_t)(w) >> 16) * x##1
/* Few registers take each product at once. */
#define DOT_HELD(sum, w, x)          \
    sum += ((w) & 0xffffu) * x##0; \
    HOLD(sum);                     \
    sum += ((w) >> 16) * x##1;     \
    HOLD(sum)
#define TWICE(once, again) once
#define PAIRS 1
#endif
/* Four rows whose fields begin at bit `at`. Codes of a grid without 0 are odd, twice a field less the offset. */
#define FIELD(w, at, twice) (((at) < (twice) ? (w) << 1 : (w) >> ((at) - (twice))) & mask)
#define ROWS(ADD, w, at, bits, twice, x)          \
    ADD(s0, FIELD(w, at, twice), x);              \
    ADD(s1, FIELD(w, at + bits, twice), x);       \
    ADD(s2, FIELD(w, at + 2 * (bits), twice), x); \
    ADD(s3, FIELD(w, at + 3 * (bits), twice), x); \
    BARRIER
#define BEGIN                        \
    const uint32_t *end = w + words; \
    uint32_t s0 = *s, s1 = s0, s2 = s0, s3 = s0
#define END s[0] = s0, s[1] = s1, s[2] = s2, s[3] = s3

/* Eight half words at once, on x86-64 and 64-bit Arm. What is left over is added as above. */
#if defined(__GNUC__) && defined(__SSE2__)
#include <emmintrin.h>
#define LANES __m128i
#define SUMS __m128i
#define ZERO _mm_setzero_si128()
#define ONES _mm_set1_epi16(1)
#define WORDS(w) _mm_loadu_si128((const __m128i *)(const void *)(w))
#define CODES(x) _mm_loadu_si128((const __m128i *)(const void *)(x))
#define ONLY(v, field) _mm_and_si128(v, _mm_set1_epi16(field))
#define RIGHT(v, bits) _mm_srli_epi16(v, bits)
#define LEFT(v, bits) _mm_slli_epi16(v, bits)
#define EITHER(v, u) _mm_or_si128(v, u)
#define DOTS(sum, v, x) sum = _mm_add_epi32(sum, _mm_madd_epi16(v, x))
#define FOUR(x) _mm_loadl_epi64((const __m128i *)(const void *)(x))
#define TWO_WORDS(w) FOUR(w)
#define LOW_PAIRS(x, y) _mm_unpacklo_epi32(x, y)
#define SHUFFLED(x, y, order) \
    _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(x), _mm_castsi128_ps(y), order))
#define EVEN_PAIRS(x, y) SHUFFLED(x, y, 0x88)
#define ODD_PAIRS(x, y) SHUFFLED(x, y, 0xdd)
#define LESS(x, y, bits) _mm_srai_epi32(_mm_sub_epi32(x, y), bits)
#define ADDED(x, y) _mm_add_epi32(_mm_unpacklo_epi32(x, y), _mm_unpackhi_epi32(x, y))
#define ADDED_HALVES(x, y) _mm_add_epi32(_mm_unpacklo_epi64(x, y), _mm_unpackhi_epi64(x, y))
#define STORE(t, sum) _mm_storeu_si128((__m128i *)(void *)(t), sum)
#define SECOND 1
#elif defined(__GNUC__) && defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)
#include <arm_neon.h>
#define LANES int16x8_t
#define SUMS int32x4_t
#define ZERO vdupq_n_s32(0)
#define ONES vdupq_n_s16(1)
#define WORDS(w) vreinterpretq_s16_u32(vld1q_u32(w))
#define CODES(x) vld1q_s16(x)
#define FOUR(x) vcombine_s16(vld1_s16(x), vdup_n_s16(0))
#define TWO_WORDS(w) vcombine_s16(vreinterpret_s16_u32(vld1_u32(w)), vdup_n_s16(0))
#define ONLY(v, field) vandq_s16(v, vdupq_n_s16(field))
#define RIGHT(v, bits) \
    vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(v), vdupq_n_s16((int16_t)(-(bits)))))
#define LEFT(v, bits) vshlq_n_s16(v, bits)
#define EITHER(v, u) vorrq_s16(v, u)
#define DOTS(sum, v, x) sum = vmlal_high_s16(vmlal_s16(sum, vget_low_s16(v), vget_low_s16(x)), v, x)
#define TWO(f, x, y) vreinterpretq_s16_s32(f(vreinterpretq_s32_s16(x), vreinterpretq_s32_s16(y)))
#define LOW_PAIRS(x, y) TWO(vzip1q_s32, x, y)
#define EVEN_PAIRS(x, y) TWO(vuzp1q_s32, x, y)
#define ODD_PAIRS(x, y) TWO(vuzp2q_s32, x, y)
#define LESS(x, y, bits) vshrq_n_s32(vsubq_s32(x, y), bits)
#define ADDED(x, y) vpaddq_s32(x, y)
#define ADDED_HALVES(x, y) vpaddq_s32(x, y)
#define STORE(t, sum) vst1q_u32(t, vreinterpretq_u32_s32(sum))
#define SECOND 2
#endif
#ifdef LANES
#define LANE(v, at, twice, field) ONLY((at) < (twice) ? LEFT(v, 1) : RIGHT(v, (at) < (twice) ? 0 : (at) - (twice)), field)
#define LANE_ROWS(v, at, bits, twice, field, x)              \
    DOTS(v0, LANE(v, at, twice, field), x);                  \
    DOTS(v1, LANE(v, (at) + (bits), twice, field), x);       \
    DOTS(v2, LANE(v, (at) + 2 * (bits), twice, field), x);   \
    DOTS(v3, LANE(v, (at) + 3 * (bits), twice, field), x)
#define LANE_SUMS SUMS v0 = ZERO, v1 = ZERO, v2 = ZERO, v3 = ZERO
#define ADD_LANES                                                \
    do {                                                         \
        uint32_t t[4];                                           \
        STORE(t, ADDED_HALVES(ADDED(v0, v1), ADDED(v2, v3)));    \
        s0 += t[0], s1 += t[1], s2 += t[2], s3 += t[3];          \
    } while (0)
#define LANES_OF_2(twice, field)                                         \
    LANE_SUMS;                                                           \
    for (; end - w > 3; w += 4, x += 16) {                               \
        const LANES a = CODES(x), b = CODES(x + 8), v = WORDS(w);        \
        LANE_ROWS(v, 0, 2, twice, field, EVEN_PAIRS(a, b));              \
        LANE_ROWS(v, 8, 2, twice, field, ODD_PAIRS(a, b));               \
    }                                                                    \
    ADD_LANES;
/* Sums of the first and third rows, or of the second and fourth, of bytes. */
#define HALVES(s, r, v)                   \
    do {                                  \
        uint32_t t[4];                    \
        STORE(t, v);                      \
        s += t[0] + t[3 - SECOND];        \
        r += t[SECOND] + t[3];            \
    } while (0)
#else
#define LANES_OF_2(twice, field)
#endif
#define TWO_BITS(twice)                        \
    for (; w != end; w++, x += 4) {            \
        PAIR(a, x);                            \
        ROWS(DOT_HELD, *w, 0, 2, twice, a);    \
        PAIR(b, x + 2);                        \
        ROWS(DOT_HELD, *w, 8, 2, twice, b);    \
    }

/* Four columns of 3 bits, the third in `bits`. Nibbles of `even` are of the first and third rows, of `odd` of the second
   and fourth. */
#define THREE_BITS(bits)                                                     \
    {                                                                        \
        uint32_t high = (bits) & 0xff00ffu, even, odd;                       \
        high = (high | high << 4) & 0x0f0f0f0fu;                             \
        high |= high << 2;                                                   \
        even = (*w & 0x33333333u) | (high << 2 & 0x44444444u);               \
        odd = (*w >> 2 & 0x33333333u) | (high << 1 & 0x44444444u);           \
        PAIR(a, x);                                                          \
        DOT_HELD(s0, even & mask, a);                                        \
        DOT_HELD(s2, even >> 4 & mask, a);                                   \
        DOT_HELD(s1, odd & mask, a);                                         \
        DOT_HELD(s3, odd >> 4 & mask, a);                                    \
        BARRIER;                                                             \
        PAIR(b, x + 2);                                                      \
        DOT_HELD(s0, even >> 8 & mask, b);                                   \
        DOT_HELD(s2, even >> 12 & mask, b);                                  \
        DOT_HELD(s1, odd >> 8 & mask, b);                                    \
        DOT_HELD(s3, odd >> 12 & mask, b);                                   \
        BARRIER;                                                             \
    }                                                                        \
    w++, x += 4

/* The sums of four rows, each of which begins with s[0]. */
typedef void four_rows(int words, const uint32_t *w, const int16_t *x, uint32_t *s);
#define BYTES(i)                           \
    {                                      \
        PAIR(a, x + 2 * i);                \
        DOT(s0, w[2 * i] & mask, a);       \
        DOT_SIGNED(s1, w[2 * i], a);       \
        DOT(s2, w[2 * i + 1] & mask, a);   \
        DOT_SIGNED(s3, w[2 * i + 1], a);   \
        BARRIER;                           \
    }
#define NIBBLES(i)                    \
    {                                 \
        PAIR(a, x + 2 * i);           \
        ROWS(DOT, w[i], 0, 4, 0, a);  \
    }

/* Bits up to the highest that is set. */
static int width(uint64_t v) {
#ifdef __GNUC__
    return v ? 64 - __builtin_clzll(v) : 0;
#else
    int n = 0, s;
    for (s = 32; s; s >>= 1)
        if (v >> s) n += s, v >>= s;
    return n + (int)v;
#endif
}

/* v / 2^s as a whole number, ties to even. */
static uint64_t shifted(uint64_t v, int s) {
    uint64_t half, rest;
    if (s <= 0) return v << -s;
    if (s > 63) return 0;
    half = (uint64_t)1 << (s - 1);
    rest = v & (2 * half - 1);
    return (v >> s) + (rest > half || (rest == half && ((v >> s) & 1)));
}

/* The number next to m 2^e, rounded once, subnormal ones too. */
static real pack(real sign, uint64_t m, int e) {
    int s = width(m) - 24;
    if (e + s < -149) s = -149 - e;
    m = shifted(m, s);
    e += s + 149;
    if (!m) return sign;
    return e > 253 ? sign | 0x7f800000u : sign | (((uint32_t)e << 23) + (uint32_t)m);
}

/* a is this times 2^(e - 150). */
static uint32_t mantissa(real a, int *e) {
    *e = (int)((a >> 23) & 255);
    if (*e) return (a & 0x7fffffu) | 0x800000u;
    *e = 1;
    return a & 0x7fffffu;
}

static real multiply(real a, real b) {
    int ea, eb;
    uint64_t m = mantissa(a, &ea);
    m *= mantissa(b, &eb);
    return pack((a ^ b) & SIGN, m, ea + eb - 300);
}

static real add(real a, real b) {
    int ea, eb, d;
    uint64_t ma, mb;
    real low = (a & ~SIGN) < (b & ~SIGN) ? a : b;
    a ^= b ^ low;
    ma = (uint64_t)mantissa(a, &ea) << 32;
    mb = (uint64_t)mantissa(low, &eb) << 32;
    d = ea - eb;
    mb = d > 55 ? mb != 0 : (mb >> d) | ((mb & (((uint64_t)1 << d) - 1)) != 0);
    ma = (a ^ low) & SIGN ? ma - mb : ma + mb;
    return pack(ma ? a & SIGN : a & low & SIGN, ma, ea - 182);
}

static real divide(real a, real b) {
    int ea, eb, s;
    uint64_t m = mantissa(a, &ea), d = mantissa(b, &eb);
    if (!m) return (a ^ b) & SIGN;
    s = 64 - width(m);
    m <<= s;
    return pack((a ^ b) & SIGN, (m / d) | (m % d != 0), ea - eb - s);
}

/* 2^55 / b, below 2^32, for quotients by the same number. */
static uint32_t reciprocal(real b) {
    int e;
    uint32_t m = mantissa(b, &e);
    return m < 0x800000u ? 0 : (uint32_t)((((uint64_t)1 << 55) - 1) / m);
}

/* divide(a, b) without a division: the estimate is the whole quotient, or 1 less. */
static real divide_by(real a, real b, uint32_t inverse) {
    int ea, eb;
    uint32_t m = mantissa(a, &ea), d = mantissa(b, &eb);
    uint64_t quotient = ((uint64_t)m * inverse) >> 29, rest = ((uint64_t)m << 26) - (uint64_t)(uint32_t)quotient * d;
    if (m < 0x800000u || !inverse) return divide(a, b);
    if (rest >= d) quotient++, rest -= d;
    return pack((a ^ b) & SIGN, 2 * quotient | (rest != 0), ea - eb - 27);
}

/* Of a positive normal number. */
static real square_root(real a) {
    int e, i;
    uint64_t m = mantissa(a, &e), root = 0, bit = (uint64_t)1 << 56;
    int odd = (e - 150) & 1;
    m <<= 30 + odd;
    EACH(i, 29) {
        uint64_t more = root + bit;
        root >>= 1;
        if (m >= more) m -= more, root += bit;
        bit >>= 2;
    }
    return pack(0, (root << 1) | (m != 0), (e - 180 - odd) / 2 - 1);
}

static int less(real a, real b) {
    int32_t x = (int32_t)(a & ~SIGN), y = (int32_t)(b & ~SIGN);
    return (a & SIGN ? -x : x) < (b & SIGN ? -y : y);
}

static real within(real a, real low, real high) {
    a = less(a, low) ? low : a;
    return less(high, a) ? high : a;
}

static real of_integer(int32_t v) {
    return pack(v < 0 ? SIGN : 0, v < 0 ? (uint64_t)-(int64_t)v : (uint64_t)v, 0);
}

/* The whole number next to a, ties to even, from low to high. */
static int32_t whole(real a, int32_t low, int32_t high) {
    int e;
    uint64_t m = mantissa(a, &e);
    int64_t v = e > 180 ? (int64_t)1 << 40 : (int64_t)shifted(m, 150 - e);
    v = a & SIGN ? -v : v;
    return v < low ? low : v > high ? high : (int32_t)v;
}

/* whole(of_integer(sum) m) for the m in `code`, as requantized has it. */
static int32_t rounded(int32_t sum, uint32_t code, int shift, int32_t low, int32_t high) {
    real m = ((code >> 7) & 0x7fffffu) | (uint32_t)((int)(code & 127u) + 93 + shift) << 23;
    return whole(multiply(of_integer(sum), m), low, high);
}

/* The same by one product, unless it is so near a tie that its rounding may decide. `code` is the mantissa of m times
   128, plus 32 less the bits of fraction in the product's high half, which are 10 at least. */
static int32_t requantized(int32_t sum, uint32_t code, int shift, int32_t low, int32_t high) {
    int k = (int)(code & 127u);
    int32_t v = (int32_t)(((int64_t)(int32_t)((uint32_t)sum << shift) * (int32_t)code) >> 32);
    if (k > 22 || ((uint32_t)v << k) + 0x80800000u <= 0x1000000u) return rounded(sum, code, shift, low, high);
#ifdef LANES
    v = (int32_t)((int64_t)(((uint64_t)(int64_t)v << k) + 0x80000000u) >> 32); /* one shift by k, not two */
#else
    v = ((v >> (31 - k)) + 1) >> 1;
#endif
    return v < low ? low : v > high ? high : v;
}

/* Bytes. Those of the second and fourth rows have a sign, so half a word is a + 256 b, and b's sum is what is left. */
static void four8(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    MASK(255u);
    BEGIN;
#ifdef LANES
    SUMS even = ZERO, odd = ZERO;
    for (; w != end; w += 4, x += 4) {
        const LANES four = FOUR(x), a = LOW_PAIRS(four, four), v = WORDS(w);
        DOTS(even, ONLY(v, 255), a);
        DOTS(odd, v, a);
    }
    HALVES(s0, s2, even);
    HALVES(s1, s3, odd);
#endif
    for (; w != end; w += 2 * PAIRS, x += 2 * PAIRS) {
        TWICE(BYTES(0), BYTES(1))
    }
    s1 = (uint32_t)((int32_t)(s1 - s0) >> 8);
    s3 = (uint32_t)((int32_t)(s3 - s2) >> 8);
    END;
}

/* The same for sums of more than 24 bits: no byte has a sign. */
static void wide8(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    MASK(255u);
    BEGIN;
#ifdef LANES
    SUMS even = ZERO, odd = ZERO;
    for (; w != end; w += 4, x += 4) {
        const LANES four = FOUR(x), a = LOW_PAIRS(four, four), v = WORDS(w);
        DOTS(even, ONLY(v, 255), a);
        DOTS(odd, RIGHT(v, 8), a);
    }
    HALVES(s0, s2, even);
    HALVES(s1, s3, odd);
#endif
    for (; w != end; w += 2, x += 2) {
        PAIR(a, x);
        DOT(s0, w[0] & mask, a);
        DOT(s1, (w[0] >> 8) & mask, a);
        DOT(s2, w[1] & mask, a);
        DOT(s3, (w[1] >> 8) & mask, a);
        BARRIER;
    }
    END;
}

static void four4(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    MASK(15u);
    BEGIN;
#ifdef LANES
    LANE_SUMS;
    for (; end - w > 3; w += 4, x += 8) {
        const LANES a = CODES(x), v = WORDS(w);
        LANE_ROWS(v, 0, 4, 0, 15, a);
    }
    ADD_LANES;
#endif
    for (; w != end; w += PAIRS, x += 2 * PAIRS) {
        TWICE(NIBBLES(0), NIBBLES(1))
    }
    END;
}

static void four2(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    MASK(3u);
    BEGIN;
    LANES_OF_2(0, 3)
    TWO_BITS(0)
    END;
}

static void odd2(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    MASK(6u);
    BEGIN;
    LANES_OF_2(1, 6)
    TWO_BITS(1)
    END;
}

/* Two bits of all columns, and their third bit, which is in a word for 8 columns behind those of the first two. */
static void three(int words, const uint32_t *w, const int16_t *x, int twice, uint32_t *s) {
    MASK(7u);
    int quads = 2 * words / 3;
    const uint32_t *third = w + quads;
    uint32_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#ifdef LANES
    /* Half words of `even` and `odd` have all three bits of the first and third rows, or of the second and fourth, for
       two columns. Sums with 16 times those of another row fit for 2048 columns. */
    while (quads > 3) {
        const uint32_t *end = w + (quads < 512 ? quads & ~3 : 512);
        LANE_SUMS;
        quads -= (int)(end - w);
        for (; w != end; w += 4, third += 2, x += 16) {
            const LANES a = CODES(x), b = CODES(x + 8), e = EVEN_PAIRS(a, b), f = ODD_PAIRS(a, b);
            const LANES v = WORDS(w), u = TWO_WORDS(third), bytes = LOW_PAIRS(ONLY(u, 255), RIGHT(u, 8));
            const LANES nibbles = ONLY(EITHER(bytes, LEFT(bytes, 4)), 0x0f0f);
            const LANES spread = EITHER(nibbles, LEFT(nibbles, 2));
            const LANES even = EITHER(ONLY(v, 0x3333), ONLY(LEFT(spread, 2), 0x4444));
            const LANES odd = EITHER(ONLY(RIGHT(v, 2), 0x3333), ONLY(LEFT(spread, 1), 0x4444));
            DOTS(v0, ONLY(even, 7), e);
            DOTS(v2, ONLY(even, 255), e);
            DOTS(v0, ONLY(RIGHT(even, 8), 7), f);
            DOTS(v2, RIGHT(even, 8), f);
            DOTS(v1, ONLY(odd, 7), e);
            DOTS(v3, ONLY(odd, 255), e);
            DOTS(v1, ONLY(RIGHT(odd, 8), 7), f);
            DOTS(v3, RIGHT(odd, 8), f);
        }
        v2 = LESS(v2, v0, 4), v3 = LESS(v3, v1, 4);
        ADD_LANES;
    }
#endif
    for (; quads > 0; quads -= 2, third++) {
        THREE_BITS(*third);
        if (quads > 1) {
            THREE_BITS(*third >> 8);
        }
    }
    s[1] = *s + (s1 << twice), s[2] = *s + (s2 << twice), s[3] = *s + (s3 << twice), s[0] += s0 << twice;
}

static void four3(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    three(words, w, x, 0, s);
}

static void odd3(int words, const uint32_t *w, const int16_t *x, uint32_t *s) {
    three(words, w, x, 1, s);
}

/* -offset times the sum of x, modulo 2^32. */
static uint32_t offset_sum(int offset, int k, const int16_t *x) {
    MASK(1u);
    uint32_t sum = 0;
#ifdef LANES
    uint32_t t[4];
    SUMS v0 = ZERO;
    for (; k > 7; k -= 8, x += 8) DOTS(v0, ONES, CODES(x));
    STORE(t, v0);
    sum = t[0] + t[1] + t[2] + t[3];
#endif
    for (; k > 1; k -= 2, x += 2) {
        PAIR(a, x);
        DOT(sum, mask, a);
    }
    if (k) {
        const uint32_t lone = (uint32_t)*x;
        sum += lone;
    }
    return (0u - (uint32_t)offset) * sum;
}

/* No number is NaN or infinite. */
static int all_finite(int n, const real *x) {
    int i, bad = 0;
    EACH(i, n) bad += ((x[i] >> 23) & 255) == 255;
    return !bad;
}

/* 1 if a number is below its low end or above its high one; with step 0 all numbers share the ends. */
static int outside(int n, int step, const real *x, const real *low, const real *high) {
    int i, found = 0;
    EACH(i, n) found |= less(x[i], low[i * step]) | less(high[i * step], x[i]);
    return found;
}

static void scale(int n, const real *x, const real *factor, real *y) {
    int i;
    EACH(i, n) y[i] = multiply(x[i], factor[i]);
}

static void sum(int n, const real *a, const real *b, real *y) {
    int i;
    EACH(i, n) y[i] = add(a[i], b[i]);
}

static void clip(int n, const real *x, real low, real high, real *y) {
    int i;
    EACH(i, n) y[i] = within(x[i], low, high);
}

static void quantize(int n, const real *x, real step, int low, int high, int16_t *y) {
    uint32_t inverse = reciprocal(step);
    int i;
    EACH(i, n) y[i] = (int16_t)whole(divide_by(x[i], step, inverse), low, high);
}

/* By the reciprocal of a step that is a power of two. */
static void quantize_shift(int n, const real *x, real inverse, int low, int high, int16_t *y) {
    int i;
    EACH(i, n) y[i] = (int16_t)whole(multiply(x[i], inverse), low, high);
}

static void quantize_bytes(int n, const uint8_t *x, const int8_t *code, int zero, int16_t *y) {
    int i;
    EACH(i, n) y[i] = (int16_t)(code[x[i]] - zero);
}

static void dequantize(int n, const int16_t *x, real step, real *y) {
    int i;
    EACH(i, n) y[i] = multiply(of_integer(x[i]), step);
}

static void look_up(int n, const int16_t *x, int first, const int8_t *code, int zero, int16_t *y) {
    int i;
    EACH(i, n) y[i] = (int16_t)(code[(x[i] - first) & 255] - zero);
}

/* Recurrent policies add and multiply whole numbers of steps 2^e, which are exact as int32. */
static void widen(int n, const int16_t *x, real *y) {
    int i;
    EACH(i, n) y[i] = (uint32_t)x[i];
}

static void products(int n, const real *a, const real *b, real *y) {
    int i;
    EACH(i, n) y[i] = a[i] * b[i];
}

static void accumulate(int n, const real *a, int first, const real *b, int second, real *y) {
    int i;
    EACH(i, n) y[i] = a[i] * (uint32_t)first + b[i] * (uint32_t)second;
}

/* Codes of steps that are 2^shift times as large as 1 / factor, ties to even. */
static void narrow(int n, const real *x, int factor, int shift, int low, int high, int16_t *y) {
    const int32_t half = ((int32_t)1 << shift) >> 1;
    int i;
    EACH(i, n) {
        int32_t v = (int32_t)(x[i] * (uint32_t)factor);
        if (shift) v = (v + (half - 1) + ((v >> shift) & 1)) >> shift;
        y[i] = (int16_t)(v < low ? low : v > high ? high : v);
    }
}

/* sign x 2^exponent. */
static void to_real(int n, const real *x, int sign, int exponent, real *y) {
    int i;
    EACH(i, n) {
        const int32_t v = (int32_t)(x[i] * (uint32_t)sign);
        const uint32_t m = (uint32_t)(v < 0 ? -v : v);
        const int s = 24 - width(m);
        y[i] = m ? (v < 0 ? SIGN : 0) | (((uint32_t)(149 + exponent - s) << 23) + (m << s)) : 0;
    }
}

/* Codes of steps 2^exponent. */
static void quantize_power(int n, const real *x, int exponent, int low, int high, int16_t *y) {
    int i, e;
    EACH(i, n) {
        int32_t v = (int32_t)mantissa(x[i], &e), s = 150 - e + exponent;
        if (s > 0) v = s > 25 ? 0 : (v + (((int32_t)1 << s) >> 1) - 1 + ((v >> s) & 1)) >> s;
        v = x[i] & SIGN ? -v : v; /* without a shift it is 2^23 or more */
        y[i] = (int16_t)(v < low ? low : v > high ? high : v);
    }
}

/* A monotonic function of codes: low, plus one for each of 255 limits below the code. */
static void threshold(int n, const int16_t *x, const int16_t *limit, int low, int16_t *y) {
    int i, place, step;
    EACH(i, n) {
        for (place = 0, step = 128; step; step >>= 1)
            if (limit[place + step - 1] < x[i]) place += step;
        y[i] = (int16_t)(low + place);
    }
}

/* Codes of w x + b, each `step` places after the one before; a weight is a field less the offset. */
static void dense(four_rows *four, int offset, int words, int shift, int n, int k, const uint32_t *w, const int32_t *b,
                  const uint32_t *m, const int16_t *x, int low, int high, int step, int16_t *y) {
    uint32_t start = offset_sum(offset, k, x), s[4];
    int i;
    for (; n > 0; n -= 4, w += words) {
        s[0] = start;
        four(words, w, x, s);
        for (i = 0; i < 4 && i < n; i++, y += step)
            *y = (int16_t)requantized((int32_t)((uint32_t)*b++ + s[i]), *m++, shift, low, high);
    }
}

static void last(four_rows *four, int offset, int words, int n, int k, const uint32_t *w, const real *unit,
                 const real *b, const int16_t *x, real *y) {
    uint32_t start = offset_sum(offset, k, x), s[4];
    int i;
    for (i = 0; i < n; i++) {
        if (!(i & 3)) {
            s[0] = start;
            four(words, w, x, s);
            w += words;
        }
        y[i] = add(multiply(of_integer((int32_t)s[i & 3]), unit[i]), b[i]);
    }
}

/* The window of an image [c][h][wide] that begins at (top, left), zeros around the image, as a row. */
static void window(int c, int h, int wide, int kh, int kw, int top, int left, const int16_t *x,
                   int16_t *row) {
    int i, u, v;
    for (i = 0; i < c; i++, x += h * wide)
        for (u = top; u < top + kh; u++)
            for (v = left; v < left + kw; v++)
                *row++ = u < 0 || u >= h || v < 0 || v >= wide ? 0 : x[u * wide + v];
}

static void convolve(four_rows *four, int offset, int words, int shift, int n, int c, int h, int wide, int kh, int kw,
                     int sh, int sw, int ph, int pw, int oh, int ow, const uint32_t *w, const int32_t *b,
                     const uint32_t *m, const int16_t *x, int low, int high, int16_t *row, int16_t *y) {
    int u, v;
    EACH(u, oh) EACH(v, ow) {
        window(c, h, wide, kh, kw, u * sh - ph, v * sw - pw, x, row);
        dense(four, offset, words, shift, n, c * kh * kw, w, b, m, row, low, high, oh * ow, y + u * ow + v);
    }
}

/* Distances from the whole number next to the mean, so that all sums are of small integers. */
static void layer_norm(int n, const int16_t *x, real share, real epsilon, const real *gain, const real *offset,
                       real *y) {
    int32_t total = 0, rest = 0, squares = 0, centre;
    real mean, variance, root, deviation;
    uint32_t inverse;
    int i;
    EACH(i, n) total += x[i];
    centre = whole(multiply(of_integer(total), share), -32768, 32767);
    EACH(i, n) {
        int32_t d = x[i] - centre;
        rest += d;
        squares += d * d;
    }
    mean = multiply(of_integer(rest), share);
    variance = add(multiply(of_integer(squares), share), multiply(mean, mean) ^ SIGN);
    variance = add(variance, epsilon);
    root = square_root(variance);
    deviation = multiply(add(root, divide(variance, root)), 0x3f000000u);
    inverse = reciprocal(deviation);
    EACH(i, n) {
        real near = divide_by(add(of_integer(x[i] - centre), mean ^ SIGN), deviation, inverse);
        y[i] = add(multiply(near, gain[i]), offset[i]);
    }
}

/* Numbers divided by their length; `least` is the smallest sum of squares. */
static void l2_norm(int n, const int16_t *x, real least, real *y) {
    int32_t squares = 0;
    real total, root;
    uint32_t inverse;
    int i;
    EACH(i, n) squares += (int32_t)x[i] * x[i];
    total = of_integer(squares);
    if (less(total, least)) total = least;
    root = square_root(total);
    root = multiply(add(root, divide(total, root)), 0x3f000000u);
    inverse = reciprocal(root);
    EACH(i, n) y[i] = divide_by(of_integer(x[i]), root, inverse);
}

/* The number of the largest of n scores, which are counted from `start`. */
static void argmax(int n, const real *x, int start, int32_t *y) {
    int i, best = 0;
    EACH(i, n) if (less(x[best], x[i])) best = i;
    y[0] = start + best;
}

static void positive(int n, const real *x, int32_t *y) {
    int i;
    EACH(i, n) y[i] = less(0, x[i]);
}

/* tanh by exp(-2 |x|): as many halvings as log 2 fits into 2 |x|, and the series of exp for what is left. */
static void squash(int n, const real *x, real low, real high, real range, real *y) {
    const uint64_t unit = (uint64_t)1 << 30, log2 = 744261118u;
    int i, k;
    EACH(i, n) {
        uint64_t rest = (uint64_t)whole(multiply(x[i] & ~SIGN, 0x4d000000u), 0, INT32_MAX) * 16, power = unit;
        int halvings = (int)(rest / log2);
        real share;
        rest %= log2;
        for (k = 10; k; k--) power = unit - ((rest * power) >> 30) / (uint64_t)k;
        power >>= halvings;
        share = pack(x[i] & SIGN, ((unit - power) << 30) / (unit + power), -30);
        share = multiply(add(share, 0x3f800000u), 0x3f000000u);
        y[i] = within(add(multiply(share, range), low), low, high);
    }
}
