/** A race of several methods, each with a clock that runs only during its forward passes. */

import { decode } from "./decoding.js";

/** One method that generates the image. */
export class Lane {
  /**
   * @param {Object} method  from the data of the page
   * @param {Generator} passes  from `decode`
   */
  constructor(method, passes) {
    this.method = method;
    this.passes = passes;
    this.tokens = [];
    this.forwards = 0;
    this.seconds = 0;
    this.last = null; // the last forward pass that is shown
    this.run();
  }

  /** Run the next forward pass, which is shown later. Its result is null after the last one. */
  run() {
    const begun = performance.now();
    const { value, done } = this.passes.next();
    this.coming = done ? null : { ...value, seconds: (performance.now() - begun) / 1000 };
  }

  get isDone() {
    return this.coming === null;
  }

  /** Return the time at which the next forward pass ends. The clock counts "seconds" or "forwards". */
  due(clock) {
    return clock === "forwards" ? this.forwards + 1 : this.seconds + this.coming.seconds;
  }

  /** Emit the tokens of the forward pass that has run, and run the next one. */
  advance() {
    this.last = this.coming;
    this.tokens.push(...this.last.emitted);
    this.forwards++;
    this.seconds += this.last.seconds;
    this.run();
  }
}

/** All methods with the same caption and noise. */
export class Race {
  /**
   * @param {Object[]} methods  from the data of the page
   * @param {Object} models  from `loadModels`
   * @param {string} caption  the caption
   * @param {Object<string, Stream>} noise  streams by name
   * @param {Object} settings  guidance, temperature, topK, k and delta
   */
  constructor(methods, models, caption, noise, settings) {
    const words = models.encoder.encode(caption);
    this.lanes = methods.map((method) => new Lane(method, decode(method, models, words, noise, settings)));
    this.now = 0;
  }

  get isDone() {
    return this.lanes.every((lane) => lane.isDone);
  }

  /**
   * Let time pass.
   *
   * @param {number} duration  in units of the clock
   * @param {string} clock  "seconds" or "forwards"
   */
  advance(duration, clock) {
    this.now += duration;
    for (const lane of this.lanes) {
      while (!lane.isDone && lane.due(clock) <= this.now) lane.advance();
    }
  }
}
