/** Tensors of safetensors files. The format is documented in the repository huggingface/safetensors. */

const HEADER_BYTES = 8; // a little-endian integer, the length of the JSON header

/**
 * Read all tensors of a file as float32.
 *
 * @param {ArrayBuffer} file  content of the file
 * @returns {{tensors: Object<string, Float32Array>, metadata: Object<string, string>}}
 */
export function readTensors(file) {
  const length = Number(new DataView(file).getBigUint64(0, true));
  const { __metadata__: metadata = {}, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(file, HEADER_BYTES, length)));
  const tensors = {};
  for (const [name, { dtype, data_offsets: [begin, end] }] of Object.entries(entries)) {
    if (!(dtype in READERS)) throw new Error(`tensor ${name} has the dtype ${dtype}; the page reads ${Object.keys(READERS).join(", ")}`);
    tensors[name] = READERS[dtype](file.slice(HEADER_BYTES + length + begin, HEADER_BYTES + length + end));
  }
  return { tensors, metadata };
}

const READERS = {
  F32: (bytes) => new Float32Array(bytes),
  I16: (bytes) => Float32Array.from(new Int16Array(bytes)),
  // A bfloat16 number is the upper half of a float32 number.
  BF16: (bytes) => {
    const bits = new Uint32Array(new Uint16Array(bytes));
    return new Float32Array(bits.map((half) => half << 16).buffer);
  },
};
