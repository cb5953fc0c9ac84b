// The finaliser of splitmix64 (Steele, Lea and Flood, 2014), as in randomness/hashed.py.

typedef unsigned long long Bits;

#define GOLDEN 0x9E3779B97F4A7C15ull

DEVICE Bits mix(Bits z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
