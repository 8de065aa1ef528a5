/**
 * Memory and matrix product of the live page, in WebAssembly.
 *
 * Weights are packed into panels of 16 columns, see kernel.wat. Rows, channels and columns are counted in values, and
 * everything is float32.
 */

export const PANEL = 16;
const BYTES = Float32Array.BYTES_PER_ELEMENT;

/** Weights of a linear map, packed for `Kernel.multiplyAdd`. */
export class Panels {
  /**
   * @param {Float32Array} values  the packed values, in the kernel's memory
   * @param {number} inner  number of input channels
   * @param {number} columns  number of output channels, a multiple of PANEL
   * @param {number} capacity  number of input channels for which a panel has room
   */
  constructor(values, inner, columns, capacity = inner) {
    this.values = values;
    this.inner = inner;
    this.columns = columns;
    this.capacity = capacity;
  }
}

/** The WebAssembly module with its memory, which is never freed. */
export class Kernel {
  /** @param {WebAssembly.Instance} instance  an instance of kernel.wasm */
  constructor(instance) {
    this.memory = instance.exports.memory;
    this.run = instance.exports.multiply_add;
    this.used = 0;
  }

  /**
   * Reserve memory for `size` values, which are 0.
   *
   * @returns {Float32Array} a view of the memory
   */
  allocate(size) {
    const begin = this.used;
    this.used += Math.ceil(size / PANEL) * PANEL * BYTES;
    if (this.used > this.memory.buffer.byteLength) {
      throw new Error(`the models need at most ${this.memory.buffer.byteLength} bytes, got ${this.used}; raise the pages in kernel.wat`);
    }
    return new Float32Array(this.memory.buffer, begin, size);
  }

  /**
   * Pack the weights of a linear map, as PyTorch stores them.
   *
   * @param {Float32Array} weight  (columns, inner), row by row
   * @param {number} inner  number of input channels
   */
  pack(weight, inner) {
    const used = weight.length / inner;
    const columns = Math.ceil(used / PANEL) * PANEL;
    const values = this.allocate(columns * inner);
    for (let column = 0; column < used; column++) {
      const begin = Math.floor(column / PANEL) * PANEL * inner + (column % PANEL);
      for (let channel = 0; channel < inner; channel++) {
        values[begin + channel * PANEL] = weight[column * inner + channel];
      }
    }
    return new Panels(values, inner, columns);
  }

  /**
   * Add the product of x and packed weights to y.
   *
   * @param {Float32Array} x  rows of at least `inner` values
   * @param {number} xStride  distance of two rows of x
   * @param {Panels} panels  the weights
   * @param {Float32Array} y  rows of at least `columns` values, changed in place
   * @param {number} yStride  distance of two rows of y
   * @param {number} rows  number of rows, at least 1
   * @param {number} inner  number of input channels that are used, at least 1
   * @param {number} columns  number of output channels that are computed, a multiple of PANEL
   */
  multiplyAdd(x, xStride, panels, y, yStride, rows, inner = panels.inner, columns = panels.columns) {
    const stride = panels.capacity * PANEL * BYTES;
    this.run(x.byteOffset, xStride * BYTES, panels.values.byteOffset, stride, y.byteOffset, yStride * BYTES, rows, inner, columns / PANEL);
  }
}
