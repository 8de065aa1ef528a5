/** Image decoder of the page: from codes to pixels, as in lantern_models/images/shapes.py. */

const GROUPS = 8;
const EPS = 1e-5;

/**
 * Values of a grid of positions.
 *
 * @typedef {{values: Float32Array, side: number, channels: number}} Grid  values: (side * side, channels)
 */

/** The decoder of the image tokenizer. */
export class ImageDecoder {
  /**
   * @param {Kernel} kernel  owner of the memory
   * @param {{tensors: Object, metadata: Object}} file  tokenizer.safetensors, from `readTensors`
   */
  constructor(kernel, file) {
    const { tensors } = file;
    const config = JSON.parse(file.metadata.lantern).config;
    this.kernel = kernel;
    this.tensors = tensors;
    this.grid = config.grid;
    this.codeDim = config.code_dim;
    this.patch = config.image_size / (2 * config.grid);
    this.side = config.image_size;
    this.codebook = normalise(tensors.embedding, config.code_dim);
    const blocks = config.decoder_blocks;
    this.coarse = Array.from({ length: blocks }, (_, block) => `decoder.${1 + block}`);
    this.widen = `decoder.${1 + blocks}`;
    this.fine = Array.from({ length: blocks }, (_, block) => `decoder.${3 + blocks + block}`);
    this.lastNorm = `decoder.${3 + 2 * blocks}`;
    this.last = `decoder.${5 + 2 * blocks}`;
    this.panels = {};
    const inBlocks = [...this.coarse, ...this.fine].flatMap((name) => [`${name}.conv1`, `${name}.conv2`]);
    for (const name of ["decoder.0", ...inBlocks, this.widen, this.last]) {
      const weight = tensors[`${name}.weight`];
      this.panels[name] = kernel.pack(weight, weight.length / tensors[`${name}.bias`].length);
    }
    const finest = (2 * config.grid) ** 2; // positions of the finer grid
    const largest = (size) => Math.max(...Object.values(this.panels).map((panels) => panels[size]));
    this.patches = kernel.allocate(finest * largest("inner"));
    this.output = kernel.allocate(finest * largest("columns"));
  }

  /**
   * Decode an image.
   *
   * @param {number[]} codes  the codes line by line. A missing code, null, decodes as the zero vector
   * @returns {ImageData} the image
   */
  decode(codes) {
    const latents = new Float32Array(codes.length * this.codeDim);
    codes.forEach((code, index) => {
      if (code !== null) latents.set(this.codebook.subarray(code * this.codeDim, (code + 1) * this.codeDim), index * this.codeDim);
    });
    let grid = this.convolve({ values: latents, side: this.grid, channels: this.codeDim }, "decoder.0");
    for (const name of this.coarse) grid = this.residualBlock(grid, name);
    grid = shuffle(this.convolve(grid, this.widen), 2);
    for (const name of this.fine) grid = this.residualBlock(grid, name);
    grid = shuffle(this.convolve(this.normSilu(grid, this.lastNorm), this.last), this.patch);
    const image = new ImageData(this.side, this.side);
    for (let pixel = 0; pixel < this.side ** 2; pixel++) {
      for (let colour = 0; colour < 3; colour++) image.data[4 * pixel + colour] = Math.round((grid.values[3 * pixel + colour] + 1) * 127.5);
      image.data[4 * pixel + 3] = 255;
    }
    return image;
  }

  residualBlock(grid, name) {
    const inner = this.convolve(this.normSilu(grid, `${name}.norm1`), `${name}.conv1`);
    const added = this.convolve(this.normSilu(inner, `${name}.norm2`), `${name}.conv2`);
    return { ...grid, values: grid.values.map((value, index) => value + added.values[index]) };
  }

  /** Apply a convolution of 1x1 or 3x3 positions, padded with zeros, to a grid. */
  convolve({ values, side, channels }, name) {
    const panels = this.panels[name];
    const bias = this.tensors[`${name}.bias`];
    const numTaps = panels.inner / channels;
    const reach = (Math.sqrt(numTaps) - 1) / 2;
    for (let index = 0; index < side * side; index++) {
      for (let tap = 0; tap < numTaps; tap++) {
        const row = Math.floor(index / side) + Math.floor(tap / (2 * reach + 1)) - reach;
        const column = (index % side) + (tap % (2 * reach + 1)) - reach;
        const isInside = row >= 0 && row < side && column >= 0 && column < side;
        for (let channel = 0; channel < channels; channel++) {
          this.patches[index * panels.inner + channel * numTaps + tap] = isInside ? values[(row * side + column) * channels + channel] : 0;
        }
      }
    }
    this.output.fill(0, 0, side * side * panels.columns);
    this.kernel.multiplyAdd(this.patches, panels.inner, panels, this.output, panels.columns, side * side);
    const result = new Float32Array(side * side * bias.length);
    for (let index = 0; index < side * side; index++) {
      for (let channel = 0; channel < bias.length; channel++) {
        result[index * bias.length + channel] = this.output[index * panels.columns + channel] + bias[channel];
      }
    }
    return { values: result, side, channels: bias.length };
  }

  /** Apply a group norm and SiLU to a grid. */
  normSilu({ values, side, channels }, name) {
    const weight = this.tensors[`${name}.weight`];
    const bias = this.tensors[`${name}.bias`];
    const result = new Float32Array(values.length);
    const width = channels / GROUPS;
    for (let group = 0; group < channels; group += width) {
      let [sum, squares] = [0, 0];
      for (let index = 0; index < values.length; index += channels) {
        for (let channel = group; channel < group + width; channel++) {
          sum += values[index + channel];
          squares += values[index + channel] ** 2;
        }
      }
      const mean = sum / (side * side * width);
      const scale = 1 / Math.sqrt(squares / (side * side * width) - mean ** 2 + EPS);
      for (let index = 0; index < values.length; index += channels) {
        for (let channel = group; channel < group + width; channel++) {
          const x = (values[index + channel] - mean) * scale * weight[channel] + bias[channel];
          result[index + channel] = x / (1 + Math.exp(-x));
        }
      }
    }
    return { values: result, side, channels };
  }
}

/** Turn groups of `factor` * `factor` channels into positions of a finer grid, like PyTorch's PixelShuffle. */
function shuffle({ values, side, channels }, factor) {
  const fewer = channels / factor ** 2;
  const result = new Float32Array(values.length);
  for (let index = 0; index < side * side; index++) {
    for (let channel = 0; channel < channels; channel++) {
      const offset = channel % factor ** 2;
      const row = Math.floor(index / side) * factor + Math.floor(offset / factor);
      const column = (index % side) * factor + (offset % factor);
      result[(row * side * factor + column) * fewer + Math.floor(channel / factor ** 2)] = values[index * channels + channel];
    }
  }
  return { values: result, side: side * factor, channels: fewer };
}

/** Scale rows of `dim` values to unit length. */
function normalise(rows, dim) {
  return rows.map((value, index) => {
    const row = rows.subarray(index - (index % dim), index - (index % dim) + dim);
    return value / Math.hypot(...row);
  });
}
