// What the benches of pages share: Chromium (SEARCHMILL_BROWSER, if it is elsewhere), and a line for each task.
import { launch } from "../src/serve/page/web/tests/browser.js";

process.env.SEARCHMILL_BROWSER ??= "/usr/bin/chromium";
export const browser = await launch();

/** A page of an own window, with nothing in its cache. */
export async function fresh() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  return page;
}

/** Prints the median and the least of the times of each task in milliseconds, and ends the browser. */
export async function report(found) {
  for (const [task, values] of Object.entries(found)) {
    values.sort((a, b) => a - b);
    const median = values[Math.floor(values.length / 2)];
    console.log(JSON.stringify({ task, ms: Math.round(median), least: Math.round(values[0]), reps: values.length }));
  }
  await browser.close();
}
