package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/fluxvm/fluxvm/provider"
)

// version is set by the linker in releases.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "serve to a debugger: prints what to set in TF_REATTACH_PROVIDERS")
	flag.Parse()
	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{
		Address: "registry.terraform.io/fluxvm/fluxvm",
		Debug:   *debug,
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "terraform-provider-fluxvm: %v\n", err)
		os.Exit(1)
	}
}
