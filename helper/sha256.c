/* SHA-256 (FIPS 180-4), straight from the standard's text. */
#include "helper.h"
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

static void compress(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], m = h[6], n = h[7];
#pragma clang loop unroll_count(8) /* as many as there are letters: none is moved */
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = n + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (m ^ (e & (f ^ m))) + K[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) | (c & (a | b)));
        n = m, m = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += m, h[7] += n;
}

#ifdef __x86_64__
/* The same by the processor's own instructions, which cost a copy a quarter of what the text's do. The state is kept as they want it: as
 * (a, b, e, f) and (c, d, g, h); four words of the schedule are made at a time. */
__attribute__((target("sha,sse4.1,ssse3"))) static void compress_quickly(uint32_t h[8], const uint8_t *p, size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)h), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(h + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; blocks; blocks--, p += 64) {
        __m128i before_abef = abef, before_cdgh = cdgh, w[4];
        for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), swap);
#pragma clang loop unroll(full)
        for (int i = 0; i < 16; i++) {
            if (i >= 4) {
                __m128i last = w[(i + 3) % 4], sum = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
                sum = _mm_add_epi32(sum, _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
                w[i % 4] = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i word = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, word);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(word, 0x0e));
        }
        abef = _mm_add_epi32(abef, before_abef);
        cdgh = _mm_add_epi32(cdgh, before_cdgh);
    }
    low = _mm_shuffle_epi32(abef, 0x1b);
    high = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)h, _mm_blend_epi16(low, high, 0xf0));
    _mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(high, low, 8));
}

static bool has_instructions(void)
{
    static int known = -1;
    if (known < 0) {
        unsigned a, b, c, d;
        known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
    }
    return known;
}
#else
static void compress_quickly(uint32_t h[8], const uint8_t *p, size_t blocks) { (void)h, (void)p, (void)blocks; }

static bool has_instructions(void) { return false; }
#endif

static void compress_all(uint32_t h[8], const uint8_t *p, size_t blocks)
{
    if (has_instructions()) {
        compress_quickly(h, p, blocks);
        return;
    }
    for (; blocks; blocks--, p += 64) compress(h, p);
}

void sha256_begin(struct sha256 *s)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, first, sizeof first);
    s->total = 0;
}

void sha256_add(struct sha256 *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t held = s->total % 64;
    s->total += len;
    if (held) {
        size_t fill = 64 - held < len ? 64 - held : len;
        memcpy(s->block + held, p, fill);
        p += fill;
        len -= fill;
        if (held + fill < 64) return;
        compress_all(s->h, s->block, 1);
    }
    compress_all(s->h, p, len / 64);
    memcpy(s->block, p + len / 64 * 64, len % 64);
}

void sha256_end(struct sha256 *s, uint8_t digest[32])
{
    uint64_t bits = s->total * 8;
    uint8_t tail[72] = {0x80};
    size_t held = s->total % 64, pad = (held < 56 ? 56 : 120) - held;
    for (int i = 0; i < 8; i++) tail[pad + i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, tail, pad + 8);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
