/**
 * Transformer layers of the target and of the draft model, as in lantern/models/transformer.py.
 *
 * A pass runs a few new positions, the *nodes*, after the positions that a cache holds. There are two *branches* for
 * classifier-free guidance: the prompt, then the null prompt. A tensor of a pass has one row per branch and node, the
 * nodes of the first branch first. A *slot* is a position of the cache.
 */

import { PANEL, Panels } from "./kernel.js";

export const BRANCHES = 2;
const MAX_NODES = 16; // largest number of words of a prompt, which is more than a chain of drafts has

/** Keys and values of one layer, branch and head, packed for the kernel. */
class HeadCache {
  constructor(kernel, headDim, numSlots) {
    this.keys = new Panels(kernel.allocate(headDim * numSlots), headDim, numSlots);
    this.values = new Panels(kernel.allocate(headDim * numSlots), numSlots, headDim);
  }

  /**
   * Store the key and the value of a position.
   *
   * @param {number} slot  index in the cache
   * @param {Float32Array} key  (headDim)
   * @param {Float32Array} value  (headDim)
   */
  write(slot, key, value) {
    const { inner: headDim, columns: numSlots } = this.keys;
    const keyBegin = Math.floor(slot / PANEL) * PANEL * headDim + (slot % PANEL);
    for (let channel = 0; channel < headDim; channel++) {
      this.keys.values[keyBegin + channel * PANEL] = key[channel];
      this.values.values[Math.floor(channel / PANEL) * PANEL * numSlots + slot * PANEL + (channel % PANEL)] = value[channel];
    }
  }
}

/** Keys and values of all positions that a model has seen. */
export class Cache {
  /**
   * @param {Transformer} model  the model
   * @param {number} numSlots  number of positions, prompt included
   */
  constructor(model, numSlots) {
    const rounded = Math.ceil(numSlots / PANEL) * PANEL;
    const heads = () => Array.from({ length: model.numHeads }, () => new HeadCache(model.kernel, model.headDim, rounded));
    this.layers = model.layers.map(() => Array.from({ length: BRANCHES }, heads));
  }
}

/** Stack of layers without embeddings and head. */
export class Transformer {
  /**
   * @param {Kernel} kernel  owner of the memory
   * @param {Object} config  sizes of the model, from the metadata of its file
   * @param {Object<string, Float32Array>} tensors  weights by name
   * @param {string[]} prefixes  beginning of the names of each layer's weights
   */
  constructor(kernel, config, tensors, prefixes) {
    const { dim, num_heads: numHeads } = config;
    Object.assign(this, { kernel, dim, numHeads, headDim: dim / numHeads, eps: config.norm_eps });
    this.ffnHidden = tensors[prefixes[0] + "down.weight"].length / dim;
    this.layers = prefixes.map((prefix) => ({
      attentionNorm: tensors[prefix + "attention_norm.weight"], // the draft model has none
      qkv: kernel.pack(tensors[prefix + "qkv.weight"], dim),
      attentionOut: kernel.pack(tensors[prefix + "attention_out.weight"], dim),
      ffnNorm: tensors[prefix + "ffn_norm.weight"],
      gateUp: kernel.pack(tensors[prefix + "gate_up.weight"], dim),
      down: kernel.pack(tensors[prefix + "down.weight"], this.ffnHidden),
    }));
    this.rotary = rotaryTable(config.grid, this.headDim, config.rope_base);
    const rows = BRANCHES * MAX_NODES;
    this.x = kernel.allocate(rows * dim);
    this.normed = kernel.allocate(rows * dim);
    this.qkv = kernel.allocate(rows * 3 * dim);
    this.attended = kernel.allocate(rows * dim);
    this.gateUp = kernel.allocate(rows * 2 * this.ffnHidden);
    this.product = kernel.allocate(rows * this.ffnHidden);
    this.scores = kernel.allocate(MAX_NODES * 8 * PANEL);
  }

  /**
   * Run the layers on the rows in `this.x`, which are replaced by the hidden states. The nodes are a chain: each sees
   * the positions before it.
   *
   * @param {Cache} cache  keys and values of earlier positions, to which those of the nodes are added
   * @param {number} numNodes  number of nodes
   * @param {number} begin  slot of the first node
   * @param {?number} position  image position of the first node. null for nodes of the prompt
   */
  run(cache, numNodes, begin, position) {
    const rows = BRANCHES * numNodes;
    const { dim, ffnHidden } = this;
    for (const [index, layer] of this.layers.entries()) {
      if (layer.attentionNorm) rmsNorm(this.x, layer.attentionNorm, rows, this.eps, this.normed);
      else this.normed.set(this.x.subarray(0, rows * dim));
      this.multiply(this.normed, layer.qkv, this.qkv, rows);
      this.rotate(numNodes, position);
      this.attend(cache.layers[index], numNodes, begin);
      this.kernel.multiplyAdd(this.attended, dim, layer.attentionOut, this.x, dim, rows);
      rmsNorm(this.x, layer.ffnNorm, rows, this.eps, this.normed);
      this.multiply(this.normed, layer.gateUp, this.gateUp, rows);
      this.multiplyGates(rows);
      this.kernel.multiplyAdd(this.product, ffnHidden, layer.down, this.x, dim, rows);
    }
  }

  /** Set y to the product of x and packed weights. Rows follow one another without gaps. */
  multiply(x, panels, y, rows) {
    y.fill(0, 0, rows * panels.columns);
    this.kernel.multiplyAdd(x, panels.inner, panels, y, panels.columns, rows);
  }

  /** Rotate queries and keys by the row and the column in the image. Those of the prompt become 0, as in LlamaGen. */
  rotate(numNodes, position) {
    const { dim, headDim, qkv } = this;
    for (let row = 0; row < BRANCHES * numNodes; row++) {
      const begin = row * 3 * dim;
      if (position === null) {
        qkv.fill(0, begin, begin + 2 * dim);
        continue;
      }
      const table = this.rotary[position + (row % numNodes)];
      for (let at = 0; at < 2 * dim; at += 2) {
        const cosine = table[at % headDim];
        const sine = table[(at % headDim) + 1];
        const real = qkv[begin + at];
        const imaginary = qkv[begin + at + 1];
        qkv[begin + at] = real * cosine - imaginary * sine;
        qkv[begin + at + 1] = real * sine + imaginary * cosine;
      }
    }
  }

  /** Write keys and values of the nodes into a layer's cache, and compute `this.attended`. */
  attend(branches, numNodes, begin) {
    const { dim, headDim, qkv, kernel, scores } = this;
    const numSlots = begin + numNodes;
    const width = Math.ceil(numSlots / PANEL) * PANEL;
    this.attended.fill(0, 0, BRANCHES * numNodes * dim);
    for (const [branch, heads] of branches.entries()) {
      const first = branch * numNodes;
      for (const [head, cache] of heads.entries()) {
        for (let node = 0; node < numNodes; node++) {
          const key = (first + node) * 3 * dim + dim + head * headDim;
          cache.write(begin + node, qkv.subarray(key, key + headDim), qkv.subarray(key + dim, key + dim + headDim));
        }
        scores.fill(0, 0, numNodes * width);
        kernel.multiplyAdd(qkv.subarray(first * 3 * dim + head * headDim), 3 * dim, cache.keys, scores, width, numNodes, headDim, width);
        for (let node = 0; node < numNodes; node++) {
          softmaxInPlace(scores, node * width, begin + node + 1, headDim ** -0.5);
          scores.fill(0, node * width + begin + node + 1, (node + 1) * width); // later nodes are hidden
        }
        kernel.multiplyAdd(scores, width, cache.values, this.attended.subarray(first * dim + head * headDim), dim, numNodes, numSlots);
      }
    }
  }

  /** Set `this.product` to silu(gate) * up, the inner values of the SwiGLU network. */
  multiplyGates(rows) {
    const { ffnHidden, gateUp, product } = this;
    for (let row = 0; row < rows; row++) {
      for (let channel = 0; channel < ffnHidden; channel++) {
        const gate = gateUp[2 * row * ffnHidden + channel];
        product[row * ffnHidden + channel] = (gate / (1 + Math.exp(-gate))) * gateUp[(2 * row + 1) * ffnHidden + channel];
      }
    }
  }
}

/** Divide each of the first rows of x by its root mean square, multiply it by the weight, and write it to `output`. */
export function rmsNorm(x, weight, rows, eps, output) {
  const dim = weight.length;
  for (let begin = 0; begin < rows * dim; begin += dim) {
    let sum = 0;
    for (let channel = 0; channel < dim; channel++) sum += x[begin + channel] ** 2;
    const scale = 1 / Math.sqrt(sum / dim + eps);
    for (let channel = 0; channel < dim; channel++) output[begin + channel] = x[begin + channel] * scale * weight[channel];
  }
}

/** Replace `size` values from index `begin` on by the softmax of `scale` times these values. */
function softmaxInPlace(values, begin, size, scale) {
  let largest = -Infinity;
  for (let index = begin; index < begin + size; index++) largest = Math.max(largest, values[index]);
  let sum = 0;
  for (let index = begin; index < begin + size; index++) {
    values[index] = Math.exp((values[index] - largest) * scale);
    sum += values[index];
  }
  for (let index = begin; index < begin + size; index++) values[index] /= sum;
}

/**
 * Return the rotations of each image position: cosine and sine of the angle of each pair of channels.
 *
 * The first half of the pairs turns by the row in the image, the second half by the column.
 */
function rotaryTable(grid, headDim, base) {
  const half = headDim / 2;
  const frequencies = Array.from({ length: half / 2 }, (_, index) => base ** ((-2 * index) / half));
  return Array.from({ length: grid * grid }, (_, position) => {
    const places = [Math.floor(position / grid), position % grid];
    return places.flatMap((place) => frequencies.flatMap((frequency) => [Math.cos(place * frequency), Math.sin(place * frequency)]));
  });
}
