/** Target and draft model of the page, as in lantern/models/target.py and lantern/models/draft.py. */

import { BRANCHES, Cache, rmsNorm, Transformer } from "./transformer.js";

const configOf = (file) => JSON.parse(file.metadata.lantern).config;

/** Transformer over the words of a prompt and the tokens of an image. */
export class Target {
  /**
   * @param {Kernel} kernel  owner of the memory
   * @param {{tensors: Object, metadata: Object}} file  target.safetensors, from `readTensors`
   */
  constructor(kernel, file) {
    const { tensors } = file;
    this.config = configOf(file);
    this.numTokens = this.config.grid ** 2;
    this.caches = {};
    const prefixes = Array.from({ length: this.config.num_layers }, (_, layer) => `layers.${layer}.`);
    this.transformer = new Transformer(kernel, this.config, tensors, prefixes);
    this.embedding = tensors["token_embedding.weight"];
    this.finalNorm = tensors["final_norm.weight"];
    this.nullCaption = tensors.null_caption;
    this.captionIn = kernel.pack(tensors["caption_in.weight"], this.config.caption_dim);
    this.captionOut = kernel.pack(tensors["caption_out.weight"], this.config.dim);
    this.head = kernel.pack(tensors["head.weight"], this.config.dim);
    const rows = BRANCHES * this.config.num_text_tokens;
    this.features = kernel.allocate(rows * this.config.caption_dim);
    this.inner = kernel.allocate(rows * this.config.dim);
    this.guided = kernel.allocate(rows * this.config.dim);
    this.scores = kernel.allocate(rows * this.config.vocab_size);
  }

  /** Return the cache of a method, which each of its images uses again. */
  cacheOf(id) {
    this.caches[id] ??= new Cache(this.transformer, this.config.num_text_tokens + this.numTokens);
    return this.caches[id];
  }

  /**
   * Run the words of a prompt, and the same positions of the null prompt.
   *
   * @param {Cache} cache  an empty cache
   * @param {Float32Array[]} words  features of the words
   * @returns {Float32Array} hidden states, (BRANCHES * words, dim), a copy
   */
  prefill(cache, words) {
    const { caption_dim: captionDim, num_text_tokens: numText } = this.config;
    const { transformer } = this;
    const rows = BRANCHES * words.length;
    for (const [index, word] of words.entries()) this.features.set(word, index * captionDim);
    // The prompt is padded on the left, and the null prompt with it.
    this.features.set(this.nullCaption.subarray((numText - words.length) * captionDim), words.length * captionDim);
    transformer.multiply(this.features, this.captionIn, this.inner, rows);
    for (let index = 0; index < rows * this.config.dim; index++) this.inner[index] = gelu(this.inner[index]);
    transformer.multiply(this.inner, this.captionOut, transformer.x, rows);
    transformer.run(cache, words.length, 0, null);
    return this.readHidden(rows);
  }

  /**
   * Run image tokens after those in the cache.
   *
   * @param {Cache} cache  keys and values of earlier positions
   * @param {number[]} tokens  the last emitted token, then drafts
   * @param {number} numWords  number of words of the prompt
   * @param {number} position  image position of the first token
   * @returns {Float32Array} hidden states, (BRANCHES * tokens, dim), a copy
   */
  extend(cache, tokens, numWords, position) {
    const { dim } = this.config;
    for (const [node, token] of tokens.entries()) {
      for (let branch = 0; branch < BRANCHES; branch++) {
        this.transformer.x.set(this.embedding.subarray(token * dim, (token + 1) * dim), (branch * tokens.length + node) * dim);
      }
    }
    this.transformer.run(cache, tokens.length, numWords + position, position);
    return this.readHidden(BRANCHES * tokens.length);
  }

  readHidden(rows) {
    const hidden = new Float32Array(rows * this.config.dim);
    rmsNorm(this.transformer.x, this.finalNorm, rows, this.config.norm_eps, hidden);
    return hidden;
  }

  /**
   * Compute the logits of hidden states with classifier-free guidance.
   *
   * @param {Float32Array} hidden  (BRANCHES * nodes, dim)
   * @param {number} guidance  scale s in u + s (c - u), with the states c of the prompt and u of the null prompt
   * @returns {Float32Array[]} logits of each node, (vocab), copies
   */
  logits(hidden, guidance) {
    const { dim, vocab_size: vocab } = this.config;
    const numNodes = hidden.length / BRANCHES / dim;
    for (let index = 0; index < numNodes * dim; index++) {
      const captioned = hidden[index];
      const difference = Math.fround(captioned - hidden[numNodes * dim + index]);
      this.guided[index] = captioned - Math.fround(difference * (1 - guidance));
    }
    this.transformer.multiply(this.guided, this.head, this.scores, numNodes);
    return Array.from({ length: numNodes }, (_, node) => this.scores.slice(node * vocab, (node + 1) * vocab));
  }
}

/** Draft model of EAGLE, which predicts the target's next hidden states. */
export class DraftModel {
  /**
   * @param {Kernel} kernel  owner of the memory
   * @param {{tensors: Object, metadata: Object}} file  drafter.safetensors, from `readTensors`
   */
  constructor(kernel, file) {
    const { tensors } = file;
    this.config = configOf(file);
    this.transformer = new Transformer(kernel, this.config, tensors, ["layer."]);
    this.embedding = tensors["token_embedding.weight"];
    this.fromHidden = kernel.pack(tensors["from_hidden.weight"], this.config.dim);
    this.fromToken = kernel.pack(tensors["from_token.weight"], this.config.dim);
    this.bias = tensors["from_token.bias"];
    this.cache = new Cache(this.transformer, this.config.num_text_tokens + this.config.grid ** 2);
    const rows = BRANCHES * this.config.num_text_tokens;
    this.hidden = kernel.allocate(rows * this.config.dim);
    this.tokens = kernel.allocate(rows * this.config.dim);
  }

  /**
   * Run tokens with the hidden states from which the target predicted them, after the positions in `this.cache`.
   *
   * @param {number[]} tokens  the tokens, 0 at positions of the prompt
   * @param {Float32Array} hidden  (BRANCHES * tokens, dim)
   * @param {number} begin  slot of the first token
   * @param {?number} position  image position of the first token. null for positions of the prompt
   * @returns {Float32Array} estimates of the next hidden states, (BRANCHES * tokens, dim), a copy
   */
  extend(tokens, hidden, begin, position) {
    const { dim } = this.config;
    const { kernel, x } = this.transformer;
    const rows = BRANCHES * tokens.length;
    for (let row = 0; row < rows; row++) {
      const token = tokens[row % tokens.length];
      this.tokens.set(this.embedding.subarray(token * dim, (token + 1) * dim), row * dim);
      x.set(this.bias, row * dim);
    }
    this.hidden.set(hidden);
    kernel.multiplyAdd(this.tokens, dim, this.fromToken, x, dim, rows);
    kernel.multiplyAdd(this.hidden, dim, this.fromHidden, x, dim, rows);
    this.transformer.run(this.cache, tokens.length, begin, position);
    return x.slice(0, rows * dim);
  }
}

function gelu(x) {
  return 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
}
