/** Temperature, top-k filter and sampling with Gumbel noise, as in lantern/sampling.py. */

/**
 * Apply the temperature, and keep the k largest logits and ties with the k-th.
 *
 * @param {Float32Array} logits  (vocab)
 * @param {{temperature: number, topK: number}} settings
 * @returns {Float32Array} unnormalised log-probabilities, -Infinity for codes that are filtered out
 */
export function filterLogits(logits, { temperature, topK }) {
  const weights = temperature === 1 ? logits : logits.map((logit) => logit / temperature);
  const smallest = weights.slice().sort()[weights.length - topK];
  return weights.map((weight) => (weight < smallest ? -Infinity : weight));
}

/** Return the probabilities of unnormalised log-probabilities, (vocab). */
export function softmax(weights) {
  const largest = weights.reduce((most, weight) => Math.max(most, weight));
  const probs = weights.map((weight) => Math.exp(weight - largest));
  const sum = probs.reduce((total, prob) => total + prob);
  return probs.map((prob) => prob / sum);
}

/**
 * Sample a code: the code with the largest sum of log-probability and Gumbel noise.
 *
 * @returns {{code: number, margin: number}} the code, and by how much its sum exceeds all others, in nats
 */
export function sample(weights, noise) {
  let [code, best, second] = [0, -Infinity, -Infinity];
  for (let index = 0; index < weights.length; index++) {
    const key = Math.fround(weights[index] + noise[index]);
    if (key > best) [code, best, second] = [index, key, best];
    else if (key > second) second = key;
  }
  return { code, margin: best - second };
}
