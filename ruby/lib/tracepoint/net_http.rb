# frozen_string_literal: true

require_relative "../tracepoint"
require_relative "argument_reader"
require "net/http"

module Tracepoint
  # Requests of Net::HTTP as spans `net_http:request`, from when they are written until
  # their response is read, also through the libraries that stand on it.
  #
  #   require "tracepoint/net_http"
  #
  # Arguments: `method`, `host` and `path`, without its query. Result: `status`. Making a
  # connection is a span of its own, `net_http:connect`, with `host` and `port`.
  module NetHTTP
    REQUEST = Tracepoint.define_span(:request, { method: String, host: String, path: String },
                                     provider: :net_http, result: { status: Integer })
    ARGUMENTS = ArgumentReader.new(REQUEST)
    private_constant :ARGUMENTS

    # For Net::HTTP: `request` calls itself where it has to connect first, this is
    # called once.
    # @api private
    module Exchange
      private

      def transport_request(request)
        arguments = ARGUMENTS.read { [request.method, address, request.path[/\A[^?#]*/]] }
        REQUEST.measure(*arguments) do |span|
          super.tap { |response| NetHTTP.set_status(span, response) }
        end
      end
    end

    # `net_http:connect`
    class Connect < Tracer
      def self.arguments(_names)
        { host: String, port: Integer }
      end

      def self.values(http, _given)
        [http.address, http.port]
      end
    end

    # @api private
    # No error of ours may keep the response back.
    def self.set_status(span, response)
      span[:status] = response.code.to_i if REQUEST.enabled?
    rescue StandardError
      nil
    end

    ::Net::HTTP.prepend(Exchange)
    Methods.trace(::Net::HTTP, :connect, as: "net_http:connect", by: Connect)
  end
end
