/** The decoding loop: autoregressive, Jacobi and LANTERN decoding of one image, as in lantern/decoding.py. */

import { EagleDrafter, JacobiDrafter, NoDrafter } from "./drafters.js";
import { filterLogits, sample, softmax } from "./sampling.js";

/** The verifier that accepts a draft only if the target samples it. */
class ByEquality {
  /**
   * @param {Object} node  scores of the node before the draft, see `decode`
   * @param {{token: number}} draft  the draft
   * @returns {{isAccepted: boolean, code: number, margin: number}} the decision, the code to emit after a rejection, and
   *   how close the decision was, in nats
   */
  verify(node, draft) {
    return { isAccepted: node.sampled.code === draft.token, ...node.sampled };
  }
}

/**
 * The verifier that accepts a draft x by rejection sampling with LANTERN's relaxed probability s(x), see
 * lantern/acceptance/.
 *
 * The nearest codes of x count for x while their total probability is at most delta.
 */
class ByRelaxedRejection {
  /**
   * @param {Float32Array} table  the nearest codes of each code, nearest first, (vocab, columns)
   * @param {number} k  number of nearest codes that may count
   * @param {number} delta  upper bound of their total probability
   * @param {Stream} noise  uniform random numbers of the decisions
   * @param {number} slots  number of random numbers per image position
   */
  constructor(table, k, delta, noise, slots) {
    Object.assign(this, { table, k, delta, noise, slots });
  }

  /** Verify a draft, see `ByEquality.verify`. */
  verify(node, { token, probs: draftProbs, margin: draftMargin }) {
    const probs = softmax(node.weights);
    const columns = this.table.length / probs.length;
    const nearest = this.table.subarray(token * columns, token * columns + this.k);
    const moved = probs.slice();
    let [mass, margin] = [0, draftMargin];
    for (const code of nearest) {
      const next = Math.fround(mass + probs[code]);
      margin = Math.min(margin, Math.abs(Math.log(next / this.delta)));
      if (next > this.delta) break;
      mass = next;
      moved[code] = 0;
    }
    const relaxed = Math.fround(probs[token] + mass);
    moved[token] = relaxed;
    const uniform = Math.fround(this.noise.uniforms((node.position * this.slots) / 4)[0]);
    const needed = Math.fround(uniform * draftProbs[token]);
    margin = Math.min(margin, Math.abs(Math.log(relaxed / needed)));
    if (needed <= relaxed && relaxed > 0) return { isAccepted: true, margin };
    const residual = moved.map((prob, code) => Math.max(0, prob - draftProbs[code]));
    const total = residual.reduce((sum, prob) => sum + prob);
    const sampled = sample((total > 0 ? residual.map((prob) => prob / total) : probs).map(Math.log), node.noise);
    return { isAccepted: false, code: sampled.code, margin: Math.min(margin, sampled.margin) };
  }
}

/**
 * Return drafter and verifier of a method.
 *
 * @param {{id: string, depth: number}} method  "autoregressive", "jacobi" or "lantern_chain", and its number of drafts
 * @param {Object} models  from `loadModels`
 * @param {Object<string, Stream>} noise  streams by name
 * @param {Object} settings  guidance, temperature, topK; for LANTERN also k and delta
 */
function partsOf({ id, depth }, { target, draft, nearestCodes, slots }, noise, settings) {
  if (id === "autoregressive") return [new NoDrafter(), new ByEquality()];
  if (id === "jacobi") return [new JacobiDrafter(depth), new ByEquality()];
  const drafter = new EagleDrafter(depth, draft, target, noise.draft, settings);
  return [drafter, new ByRelaxedRejection(nearestCodes, settings.k, settings.delta, noise.accept, slots)];
}

/**
 * Generate an image, and yield after each forward pass of the target. The first pass runs the prompt.
 *
 * @param {Object} method  as in `partsOf`
 * @param {Object} models  as in `partsOf`
 * @param {Float32Array[]} words  features of the words of the prompt
 * @param {Object<string, Stream>} noise  as in `partsOf`
 * @param {Object} settings  as in `partsOf`
 * @yields {{drafts: number[], numAccepted: number, emitted: number[], margin: number}} what the pass verified and
 *   emitted, and how close its closest decision was, in nats
 */
export function* decode(method, models, words, noise, settings) {
  const { target } = models;
  const { numTokens, config: { vocab_size: vocab } } = target;
  const [drafter, verifier] = partsOf(method, models, noise, settings);
  const cache = target.cacheOf(method.id);
  const score = (logits, position) => {
    const [weights, gumbel] = [filterLogits(logits, settings), noise.target.gumbel(position, vocab)];
    return { position, weights, noise: gumbel, sampled: sample(weights, gumbel) };
  };

  const promptHidden = target.prefill(cache, words);
  const first = score(target.logits(promptHidden, settings.guidance).at(-1), 0).sampled;
  drafter.begin({ first: first.code, hidden: promptHidden, numWords: words.length, numTokens });
  const tokens = [first.code];
  yield { drafts: [], numAccepted: 0, emitted: [first.code], margin: first.margin };

  while (tokens.length < numTokens) {
    const length = tokens.length;
    const numLeft = numTokens - length;
    const drafts = drafter.propose(tokens, Math.min(drafter.depth, numLeft));
    const nodes = [tokens.at(-1), ...drafts.map((draft) => draft.token)].slice(0, numLeft);
    const hidden = target.extend(cache, nodes, words.length, length - 1);
    const scores = target.logits(hidden, settings.guidance).map((logits, node) => score(logits, length + node));
    const emitted = [];
    let [numAccepted, margin] = [0, Infinity];
    while (emitted.length === numAccepted && emitted.length < numLeft) {
      const node = scores[numAccepted];
      const choice = numAccepted < drafts.length ? verifier.verify(node, drafts[numAccepted]) : node.sampled;
      margin = Math.min(margin, choice.margin);
      emitted.push(choice.isAccepted ? drafts[numAccepted].token : choice.code);
      if (choice.isAccepted) numAccepted++;
    }
    tokens.push(...emitted);
    drafter.observe({ length, nodes, sampled: scores.map((node) => node.sampled.code), emitted, hidden });
    yield { drafts: drafts.map((draft) => draft.token), numAccepted, emitted, margin };
  }
}
