import { defineConfig } from "vite";

// The built files have fixed names: the server embeds them, and a rebuild is compared with what is committed.
export default defineConfig({
  base: "/",
  build: {
    outDir: "../built",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names[0]?.endsWith(".css") ? "page.css" : "[name][extname]"),
        codeSplitting: false,
      },
    },
  },
});
