# frozen_string_literal: true

module Tracepoint
  module Agent
    # Encodes and decodes values: docs/agent/protocol.md, "Values".
    module Values
      DEPTH = 16

      module_function

      def encode(value, out = String.new(encoding: Encoding::BINARY))
        case value
        when nil then out << "n"
        when true then out << "t"
        when false then out << "f"
        when Integer then encode_integer(value, out)
        when Float then out << "d" << [value].pack("E")
        when String then encode_string(value, out)
        when Symbol then encode_string(value.to_s, out)
        when Array
          out << "a" << [value.size].pack("V")
          value.each { |item| encode(item, out) }
        when Hash then encode_map(value, out)
        else encode_string(value.to_s, out)
        end
        out
      end

      def encode_integer(value, out)
        return encode_string(value.to_s, out) unless value.between?(-(1 << 63), (1 << 63) - 1)

        out << "i" << [value].pack("q<")
      end

      def encode_string(value, out)
        tag = value.encoding == Encoding::BINARY && !value.ascii_only? ? "b" : "s"
        bytes = tag == "b" ? value : text(value)
        out << tag << [bytes.bytesize].pack("V") << bytes.b
      end

      def encode_map(value, out)
        out << "m" << [value.size].pack("V")
        value.each do |key, item|
          name = text(key.to_s)
          out << [name.bytesize].pack("V") << name.b
          encode(item, out)
        end
      end

      # Return valid UTF-8 for any string.
      def text(string)
        string = string.encode(Encoding::UTF_8, invalid: :replace, undef: :replace, replace: "\uFFFD") unless
          [Encoding::UTF_8, Encoding::BINARY, Encoding::US_ASCII].include?(string.encoding)
        utf8(string)
      rescue EncodingError
        utf8(string)
      end

      def utf8(string)
        string.dup.force_encoding(Encoding::UTF_8).scrub("\uFFFD")
      end

      # @raise [Broken] if it is not exactly one map
      def decode_map(bytes)
        reader = Reader.new(bytes)
        value = reader.value(0)
        raise Broken, "not a map" unless value.is_a?(Hash)
        raise Broken, "trailing bytes after the map" unless reader.done?

        value
      end

      # Reads untrusted bytes.
      class Reader
        def initialize(bytes)
          @bytes = bytes
          @at = 0
        end

        def done?
          @at == @bytes.bytesize
        end

        def value(depth)
          raise Broken, "too deep" if depth > DEPTH

          case take(1)
          when "n" then nil
          when "t" then true
          when "f" then false
          when "i" then take(8).unpack1("q<")
          when "d" then take(8).unpack1("E")
          when "s" then text
          when "b" then take(length)
          when "a" then Array.new(number) { value(depth + 1) }
          when "m" then map(depth)
          else raise Broken, "unknown tag"
          end
        end

        private

        def map(depth)
          pairs = {}
          number.times do
            key = text
            raise Broken, "duplicate key" if pairs.key?(key)

            pairs[key] = value(depth + 1)
          end
          pairs
        end

        def text
          string = take(length).force_encoding(Encoding::UTF_8)
          raise Broken, "text is not UTF-8" unless string.valid_encoding?

          string
        end

        def length
          take(4).unpack1("V")
        end

        # Read the number of items, which take at least one byte each.
        def number
          count = length
          raise Broken, "length exceeds the data" if count > @bytes.bytesize - @at

          count
        end

        def take(size)
          raise Broken, "truncated value" if size > @bytes.bytesize - @at

          @at += size
          @bytes.byteslice(@at - size, size)
        end
      end
    end
  end
end
