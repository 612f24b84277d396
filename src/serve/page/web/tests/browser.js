// The browser of the tests: SEARCHMILL_BROWSER is its program.

import { chromium } from "playwright-core";

export function launch() {
  const args = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ];
  return chromium.launch({ executablePath: process.env.SEARCHMILL_BROWSER, args });
}
