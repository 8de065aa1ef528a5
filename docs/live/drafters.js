/** Drafters of chains: Jacobi drafts and drafts sampled from EAGLE's draft model, as in lantern/drafters/. */

import { BRANCHES } from "./transformer.js";
import { filterLogits, sample, softmax } from "./sampling.js";

/** The drafter of autoregressive decoding, which drafts nothing. */
export class NoDrafter {
  depth = 0;
  begin() {}
  propose() {
    return [];
  }
  observe() {}
}

const NUM_KEPT = 6; // results per position in the pool
const NO_TOKEN = -2; // matches no token

/** Drafts are the tokens that the target sampled for the same positions in earlier steps, see lantern/drafters/jacobi.py. */
export class JacobiDrafter {
  /** @param {number} depth  number of drafts of a step */
  constructor(depth) {
    this.depth = depth;
  }

  /** Start an image: its first token is the first draft of every position. */
  begin({ first, numTokens }) {
    const results = () => Array.from({ length: NUM_KEPT }, () => ({ left: NO_TOKEN, code: first }));
    this.pool = Array.from({ length: numTokens + 2 * this.depth + 1 }, results); // newest result first
  }

  /** Return drafts of the next `count` positions. The preceding token is the newest draft of the position before. */
  propose(tokens, count) {
    return Array.from({ length: count }, (_, ahead) => {
      const position = tokens.length + ahead;
      const left = ahead ? this.pool[position - 1][0].code : tokens.at(-1);
      const results = this.pool[position];
      return { token: (results.find((result) => result.left === left) ?? results[0]).code };
    });
  }

  /** Keep what the target sampled after each node. The deepest result is the draft of the positions beyond. */
  observe({ length, nodes, sampled }) {
    nodes.forEach((left, node) => {
      const results = this.pool[length + node];
      results.unshift({ left, code: sampled[node] });
      results.pop();
    });
    for (let ahead = nodes.length; ahead <= 2 * this.depth; ahead++) this.pool[length + ahead][0].code = sampled.at(-1);
  }
}

/** Drafts are sampled from EAGLE's draft model, one after the other, see lantern/drafters/eagle.py. */
export class EagleDrafter {
  /**
   * @param {number} depth  number of drafts of a step
   * @param {DraftModel} draft  the draft model
   * @param {Target} target  the target, whose head the draft model uses
   * @param {Stream} noise  noise of the drafts
   * @param {Object} settings  guidance, temperature and topK
   */
  constructor(depth, draft, target, noise, settings) {
    Object.assign(this, { depth, draft, target, noise, settings });
  }

  /** Start an image: run the prompt, whose last hidden state predicted the first token. */
  begin({ first, hidden, numWords }) {
    const { dim } = this.draft.config;
    this.numSlots = numWords - 1;
    const rows = [...Array(numWords).keys()];
    this.draft.extend(Array(this.numSlots).fill(0), selectNodes(hidden, rows.slice(0, -1), dim), 0, null);
    this.pending = { tokens: [first], hidden: selectNodes(hidden, rows.slice(-1), dim) };
  }

  /** Return drafts of the next `count` positions, each with the distribution that it was sampled from. */
  propose(tokens, count) {
    const { dim, vocab_size: vocab } = this.draft.config;
    const drafts = [];
    let { tokens: inputs, hidden } = this.pending;
    let position = tokens.length - inputs.length;
    while (drafts.length < count) {
      hidden = this.draft.extend(inputs, hidden, this.numSlots + position, position);
      hidden = selectNodes(hidden, [inputs.length - 1], dim);
      position += inputs.length;
      const weights = filterLogits(this.target.logits(hidden, this.settings.guidance)[0], this.settings);
      const { code, margin } = sample(weights, this.noise.gumbel(position, vocab));
      drafts.push({ token: code, probs: softmax(weights), margin });
      inputs = [code];
    }
    return drafts;
  }

  /** Keep the emitted tokens and the hidden states that predicted them, for the next step. */
  observe({ emitted, hidden }) {
    this.pending = { tokens: emitted, hidden: selectNodes(hidden, [...emitted.keys()], this.draft.config.dim) };
  }
}

/** Return the hidden states of some nodes in both branches, (BRANCHES * nodes, dim). */
function selectNodes(hidden, nodes, dim) {
  const numNodes = hidden.length / BRANCHES / dim;
  const chosen = new Float32Array(BRANCHES * nodes.length * dim);
  for (let branch = 0; branch < BRANCHES; branch++) {
    nodes.forEach((node, index) => {
      const begin = (branch * numNodes + node) * dim;
      chosen.set(hidden.subarray(begin, begin + dim), (branch * nodes.length + index) * dim);
    });
  }
  return chosen;
}
