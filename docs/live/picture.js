/** Drawing of an image that is being generated, token by token. */

const PATCH = 60; // side of a token on the canvas, in pixels
const FAINT = 0.35; // opacity of a draft
const COLOURS = { accepted: "#ffd84d", sampled: "#ffffff", rejected: "#ff5a1f", draft: "#8a8a84" };

/** Canvas of one method. */
export class Picture {
  /**
   * @param {HTMLCanvasElement} canvas  the canvas
   * @param {ImageDecoder} decoder  decodes codes to pixels
   */
  constructor(canvas, decoder) {
    this.decoder = decoder;
    canvas.width = canvas.height = decoder.grid * PATCH;
    this.context = canvas.getContext("2d");
    this.context.imageSmoothingEnabled = false;
    this.pixels = new OffscreenCanvas(decoder.side, decoder.side);
  }

  /**
   * Draw the tokens, and drafts after them.
   *
   * @param {number[]} tokens  emitted tokens
   * @param {number[]} drafts  drafts of the positions after them
   * @param {string[]} marks  mark of each position: "accepted", "sampled", "rejected", "draft" or undefined
   */
  draw(tokens, drafts, marks) {
    const { grid, side } = this.decoder;
    const shown = [...tokens, ...drafts];
    const codes = Array.from({ length: grid * grid }, (_, index) => shown[index] ?? null);
    this.pixels.getContext("2d").putImageData(this.decoder.decode(codes), 0, 0);
    this.context.clearRect(0, 0, grid * PATCH, grid * PATCH);
    for (const [index, code] of codes.entries()) {
      if (code === null) continue;
      const [column, row] = [index % grid, Math.floor(index / grid)];
      const patch = side / grid;
      this.context.globalAlpha = index < tokens.length ? 1 : FAINT;
      this.context.drawImage(this.pixels, column * patch, row * patch, patch, patch, column * PATCH, row * PATCH, PATCH, PATCH);
      this.context.globalAlpha = 1;
      if (marks[index]) drawMark(this.context, marks[index], column * PATCH, row * PATCH, PATCH);
    }
  }
}

/** Outline a patch of a canvas, and strike it through if it is a rejected draft. */
export function drawMark(context, mark, left, top, side) {
  const line = side / 20;
  const [near, far] = [1.5 * line, side - 1.5 * line];
  context.setLineDash(mark === "draft" ? [2 * line, 2 * line] : []);
  const path = new Path2D();
  path.rect(left + near, top + near, far - near, far - near);
  if (mark === "rejected") {
    path.moveTo(left + near, top + near);
    path.lineTo(left + far, top + far);
  }
  for (const [colour, width] of [["rgba(0, 0, 0, .45)", 2 * line], [COLOURS[mark], line]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke(path);
  }
}
