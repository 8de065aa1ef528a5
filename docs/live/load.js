/** Loading of models and tables from the files beside the page. */

import { Kernel } from "./kernel.js";
import { DraftModel, Target } from "./models.js";
import { WordEncoder } from "./prompts.js";
import { readTensors } from "./tensors.js";
import { ImageDecoder } from "./tokenizer.js";

/**
 * Load everything that decoding needs.
 *
 * @param {Object} data  data of the page, from docs/live/build.py
 * @param {(name: string) => Promise<ArrayBuffer>} read  reads a file beside the page
 */
export async function loadModels(data, read = fetchFile) {
  const [code, ...files] = await Promise.all(["kernel.wasm", "target.safetensors", "drafter.safetensors", "tokenizer.safetensors", "tables.safetensors"].map(read));
  const { instance } = await WebAssembly.instantiate(code);
  const kernel = new Kernel(instance);
  const [target, drafter, tokenizer, tables] = files.map(readTensors);
  return {
    target: new Target(kernel, target),
    draft: new DraftModel(kernel, drafter),
    decoder: new ImageDecoder(kernel, tokenizer),
    encoder: new WordEncoder(tables.tensors, data.contexts, data.contextWords),
    nearestCodes: tables.tensors.nearest_codes,
    slots: data.slots,
  };
}

async function fetchFile(name) {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} could not be loaded: ${response.status}; write the folder again with make demo`);
  return response.arrayBuffer();
}
