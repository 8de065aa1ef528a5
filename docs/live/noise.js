/**
 * Noise of an image, the same as in lantern/noise.py: a value is a function of seed, stream, image position and index.
 *
 * The bits are those of the generator Philox 4x64 with 10 rounds (Salmon et al. 2011), see lantern/philox.py.
 */

const ROUNDS = 10;
const MULTIPLIERS = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const KEY_STEPS = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];
const LOW = 2n ** 64n - 1n; // mask of the lower 64 bits

/** Random numbers of one stream of an image. */
export class Stream {
  /** @param {string[]} key  key of the generator, two integers below 2^64 as text */
  constructor(key) {
    const parts = key.map(BigInt);
    this.roundKeys = Array.from({ length: ROUNDS }, (_, round) => parts.map((part, index) => (part + BigInt(round) * KEY_STEPS[index]) & LOW));
    this.gumbelRows = new Map();
  }

  /** Return the four uniform values in (0, 1) with the indices 4 `block` to 4 `block` + 3. */
  uniforms(block) {
    let [a, b, c, d] = [BigInt(block) + 1n, 0n, 0n, 0n];
    for (const key of this.roundKeys) {
      const [first, second] = [MULTIPLIERS[0] * a, MULTIPLIERS[1] * c];
      [a, b, c, d] = [(second >> 64n) ^ b ^ key[0], second & LOW, (first >> 64n) ^ d ^ key[1], first & LOW];
    }
    return [a, b, c, d].map((bits) => Math.min((Number(bits >> 11n) + 0.5) * 2 ** -53, 1 - 2 ** -53));
  }

  /** Return the standard Gumbel noise of an image position, (vocab). */
  gumbel(position, vocab) {
    if (!this.gumbelRows.has(position)) {
      const row = new Float32Array(vocab);
      for (let code = 0; code < vocab; code += 4) {
        row.set(this.uniforms((position * vocab + code) / 4).map((value) => -Math.log(-Math.log(value))), code);
      }
      this.gumbelRows.set(position, row);
    }
    return this.gumbelRows.get(position);
  }
}

/**
 * Return the streams of an image.
 *
 * @param {Object<string, string[]>} keys  key of each stream
 * @returns {Object<string, Stream>}
 */
export function makeStreams(keys) {
  return Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, new Stream(key)]));
}
