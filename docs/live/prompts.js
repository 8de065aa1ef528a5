/** Text encoder of the page: features of the words of a caption, as in lantern_models/text/words.py. */

export class WordEncoder {
  /**
   * @param {Object<string, Float32Array>} tables  "features", a row per context, and "signs", a row per word of a caption
   * @param {string[]} contexts  text of each context: a word after the words before it
   * @param {number} contextWords  number of words of the longest context
   */
  constructor(tables, contexts, contextWords) {
    this.signs = tables.signs;
    this.features = tables.features;
    this.dim = tables.features.length / contexts.length;
    this.rows = new Map(contexts.map((context, row) => [context, row]));
    this.contextWords = contextWords;
  }

  /**
   * Return the feature of each word of a caption.
   *
   * @param {string} caption  a caption of the shapes dataset
   * @returns {Float32Array[]} (dim) per word
   */
  encode(caption) {
    const words = caption.split(" ");
    return words.map((_, index) => {
      const context = words.slice(Math.max(0, index + 1 - this.contextWords), index + 1).join(" ");
      const begin = this.rows.get(context) * this.dim;
      return this.features.slice(begin, begin + this.dim).map((value, channel) => value * this.signs[index * this.dim + channel]);
    });
  }
}
